"""Films from Python. Run it in the repository: python examples/generate.py"""

from splitreel import GenerateRequest, Session

# The guard is needed as in every program that uses Ray: workers may import this file.
if __name__ == "__main__":
    with Session.from_config("examples/demo.yaml") as session:
        request = GenerateRequest(prompt="An alpine lake at sunrise.", num_frames=124, steps=5, seed=7)
        result = session.generate(request, on_progress=lambda at: print(at.stage, at.unit, at.done, "of", at.total))
        print(result.save("outputs/lake.mp4"), result.effective)

        requests = [GenerateRequest(prompt=text, steps=5) for text in ("A river.", "A storm.", "A street at night.")]
        for number, film in enumerate(session.stream(requests)):  # pipelined, in order
            print(film.save(f"outputs/film-{number}.mp4"), "seed", film.seed)
