"""THE LENS: reads and writes media files.

Knows pictures, sound, video and the mp4 that holds them, as numpy arrays and the rates that belong to them. Reading
follows what diffusers does with the same file, bit for bit where the file's rate is constant; writing the same film
again gives the same bytes whatever the number of cores, but for a rare whim of x264. Must not know: the model (canvas
rules come in as a function, lengths as numbers), torch, the cluster.
"""

from splitreel.media.data import Clip, Sound
from splitreel.media.encoder import FilmEncoder
from splitreel.media.film import FilmFacts, film_facts, read_film
from splitreel.media.images import probe_image, read_image
from splitreel.media.sound import read_sound
from splitreel.media.target import check_encoders, check_output
from splitreel.media.video import VideoFacts, probe_video, read_video
from splitreel.media.write import FilmWriter, film_bytes, write_film

__all__ = [
    "Clip",
    "FilmEncoder",
    "FilmFacts",
    "FilmWriter",
    "Sound",
    "VideoFacts",
    "check_encoders",
    "check_output",
    "film_bytes",
    "film_facts",
    "probe_image",
    "probe_video",
    "read_film",
    "read_image",
    "read_sound",
    "read_video",
    "write_film",
]
