"""Asks a running `splitreel serve` for a film, shows how far it is, and saves it.

splitreel serve --config examples/demo.yaml
python examples/follow.py "An alpine lake at sunrise." lake.mp4
"""

import os
import sys
import urllib.request

import splitreel

ADDRESS = os.environ.get("SPLITREEL_URL", "http://127.0.0.1:8000")


def main(prompt: str, output: str) -> None:
    """Create, follow, download."""
    with splitreel.Client(ADDRESS) as client:
        video = client.create(prompt, steps=5)
        for event in client.events(video["id"]):
            step = f"{event['stage']} {event['done']}/{event['total']}" if event["stage"] else event["status"]
            eta = "" if event["eta"] is None else f"eta {event['eta']:.0f} s"
            print(f"{event['progress']:3d} %  {step}  {eta}")
            video = event
        if video["status"] != "completed":
            sys.exit(f"{video['error']['code']}: {video['error']['message']}")
        for part in client.trace(video["id"])["parts"]:
            print(f"{part['seconds']:8.3f} s  {part['part']}")
    request = urllib.request.Request(f"{ADDRESS}/v1/videos/{video['id']}/content")
    if key := os.environ.get("OPENAI_API_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    with urllib.request.urlopen(request) as answer, open(output, "wb") as file:
        file.write(answer.read())


if __name__ == "__main__":
    main(*sys.argv[1:3])
