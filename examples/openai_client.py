"""OpenAI's own client against a running `splitreel serve`: nothing but the address is ours.

pip install openai
splitreel serve --config examples/demo.yaml
python examples/openai_client.py "An alpine lake at sunrise." lake.mp4
"""

import os
import sys

from openai import OpenAI


def main(prompt: str, output: str) -> None:
    """Create, poll, download, delete."""
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    video = client.videos.create_and_poll(prompt=prompt, extra_body={"steps": 5})
    if video.status != "completed":
        sys.exit(f"{video.error.code}: {video.error.message}")
    client.videos.download_content(video.id).write_to_file(output)
    client.videos.delete(video.id)


if __name__ == "__main__":
    main(*sys.argv[1:3])
