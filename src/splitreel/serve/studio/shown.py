"""What the page shows, as HTML: pure functions of what the job service says. Whatever a client wrote is escaped."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from html import escape
from typing import Any

from splitreel.observe.timings import STAGES
from splitreel.serve.jobs.view import JobView

_STATES = {
    "queued": "queued",
    "in_progress": "in progress",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}
_told = itertools.count()
_KINDS = {"image": "picture", "video": "clip", "audio": "sound"}


def notice(text: str, kind: str = "ok") -> str:
    """A message; `kind`: `ok` goes by itself, `error` stays until it is dismissed or replaced. Empty text: none."""
    if not text:
        return ""
    role, style = "alert", ""
    if kind == "ok":
        role, style = "status", f' style="animation: sr-away-{next(_told) % 2} 0.5s 8s forwards"'
    return (
        f'<div class="sr-notice {kind}" role="{role}"{style}><span>{escape(text)}</span>'
        f"{_button('dismiss', 'Close', 'Close this message')}</div>"
    )


def film(view: JobView | None, *, traced: bool) -> str:
    """The chosen film: where it stands, or the player. `traced`: there are Gantt pictures."""
    if view is None:
        return '<section class="sr-card"><h2>Film</h2><p class="sr-faint">Nothing yet. Write a prompt and make one.</p></section>'
    parts = [
        f'<section class="sr-card" aria-label="The chosen film"><div class="sr-head"><h2>Film</h2>{_badge(view)}</div>'
    ]
    if view.state == "completed":
        parts.append(_player(view))
    elif not view.has_ended:
        parts.append(_progress(view))
    elif view.error_message:
        parts.append(f'<p class="sr-error">{escape(view.error_message)}</p>')
    parts.append(f'<p class="sr-prompt">{escape(view.request["prompt"])}</p><p class="sr-faint">{_facts(view)}</p>')
    parts.extend(f'<p class="sr-faint">Note: {escape(str(text))}.</p>' for text in view.effective["warnings"])
    parts.append(f'<div class="sr-buttons">{_buttons(view)}</div>')
    if view.state == "completed" and traced:
        parts.append(_gantt(view))
    return "".join(parts) + "</section>"


def history(views: Sequence[JobView], chosen: str, *, more: bool) -> str:
    """The list of films, newest first."""
    if not views:
        return '<section class="sr-card"><h2>History</h2><p class="sr-faint">No films yet.</p></section>'
    rows = "".join(_row(view, view.id == chosen) for view in views)
    button = _button("more", "Show older films") if more else ""
    return f'<section class="sr-card"><h2>History</h2><ul class="sr-films">{rows}</ul>{button}</section>'


def references(entries: Sequence[dict[str, Any]]) -> str:
    """The ordered list of references, with what moves and removes them."""
    rows = []
    for index, entry in enumerate(entries):
        name = f"{_KINDS[entry['kind']]} {entry.get('orig_name') or ''}"
        rows.append(
            f'<li><span class="sr-name">{index + 1}. {escape(name)}</span><span class="sr-buttons">'
            + _button("up", "↑", f"Move {name} up", index, disabled=index == 0)
            + _button("down", "↓", f"Move {name} down", index, disabled=index == len(entries) - 1)
            + _button("remove", "✕", f"Remove {name}", index)
            + "</span></li>"
        )
    return f'<ol class="sr-references">{"".join(rows)}</ol>' if rows else ""


def seconds_in_words(seconds: float) -> str:
    """Such as `8 s`, `2 min 10 s`, `1 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


# Parts ----------------------------------------------------------------------------------------------------------------------


def _badge(view: JobView) -> str:
    words = "cancelling" if view.cancelling else _STATES[view.state]
    return f'<span class="sr-badge {view.state}">{words}</span>'


def _facts(view: JobView) -> str:
    made = view.effective
    parts = [
        f"{made['width']}×{made['height']}",
        f"{made['seconds']:.1f} s",
        f"{made['steps']} steps",
        f"seed {made['seed']}",
        str(made["workflow"]),
    ]
    if view.priority:
        parts.append(f"priority {view.priority}")
    if view.seconds is not None:
        parts.append(f"made in {seconds_in_words(view.seconds)}")
    return escape(" · ".join(parts))


def _progress(view: JobView) -> str:
    """A bar for each stage, and what is left."""
    at = STAGES.index(view.stage) if view.stage in STAGES else -1
    bars = []
    for index, stage in enumerate(STAGES):
        words, part = "", 0
        if index < at:
            words, part = "done", 100
        elif index == at and view.total:
            words, part = f"{view.unit} {view.done} of {view.total}", round(100 * (view.done or 0) / view.total)
            words = "done" if part == 100 else words
        elif index == at:
            words = "running"
        label = f'<span class="sr-stage">{stage}</span>'
        bars.append(f"<li>{label}{bar(part, stage, words)}<span>{escape(words)}</span></li>")
    if view.state == "queued":
        ahead = view.position or 0
        words = "Next in the queue" if ahead == 0 else f"{ahead} before it in the queue"
    else:
        words = "Ends at its next step" if view.cancelling else f"{view.progress} %"
    if view.eta is not None and not view.cancelling:
        words += f", about {seconds_in_words(view.eta)} left"
    return f'<ol class="sr-stages">{"".join(bars)}</ol><p class="sr-left">{words}</p>'


def bar(percent: int, label: str, words: str = "") -> str:
    """A bar that a screen reader can read."""
    text = f' aria-valuetext="{escape(words)}"' if words else ""
    return (
        f'<span class="sr-bar" role="progressbar" aria-label="{escape(label)}" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{percent}"{text}><i style="width: {percent}%"></i></span>'
    )


def _player(view: JobView) -> str:
    content = f"v1/videos/{view.id}/content"
    made = view.effective
    return (
        f'<video class="sr-player" controls loop playsinline preload="metadata" src="{content}" '
        f'poster="{content}?variant=thumbnail" aria-label="The film, with sound" '
        f'style="aspect-ratio: {made["width"]} / {made["height"]}"></video>'
    )


def _gantt(view: JobView) -> str:
    source = f"v1/videos/{view.id}/trace?format=gantt"
    return (
        '<figure class="sr-gantt"><figcaption>Where its time went</figcaption>'
        f'<a href="{source}" target="_blank" rel="noopener" aria-label="The Gantt picture in full size">'
        f'<img loading="lazy" src="{source}" alt="Gantt picture: a lane for each worker, a bar for each stage and hop"></a>'
        "</figure>"
    )


def _buttons(view: JobView) -> str:
    made = [_button("reuse", "Use these settings again", "", view.id)]
    if not view.has_ended:
        made.append(_button("cancel", "Cancel", "", view.id, disabled=view.cancelling))
    else:
        if view.state == "completed":
            made.append(
                f'<a class="sr-button" href="v1/videos/{view.id}/content" download="{view.id}.mp4">Download</a>'
            )
        made.append(_button("delete", "Delete", "", view.id, confirm="Delete this film and its files for good?"))
    return "".join(made)


def _row(view: JobView, is_chosen: bool) -> str:
    picture = '<span class="sr-thumb"></span>'
    if view.state == "completed":
        picture = f'<img class="sr-thumb" loading="lazy" alt="" src="v1/videos/{view.id}/content?variant=thumbnail">'
    about = _ago(view.ended or view.created)
    if view.state == "in_progress":
        step = f"{view.stage} {view.done} of {view.total}" if view.total else view.stage or "waiting for a worker"
        if view.total and view.done == view.total:
            step = f"{view.stage} done"
        about = f"{view.progress} %, {step}"
    elif view.state == "queued":
        about = f"{view.position or 0} before it"
    chosen = ' aria-current="true"' if is_chosen else ""
    cancel = _button("cancel", "Cancel", f"Cancel {view.request['prompt'][:60]}", view.id) if not view.has_ended else ""
    return (
        f'<li><button type="button" class="sr-film" data-action="show" data-id="{view.id}"{chosen}>{picture}'
        f'<span class="sr-text"><span class="sr-title">{escape(view.request["prompt"][:200])}</span>'
        f'<span class="sr-faint">{_badge(view)} {escape(about)}</span></span></button>{cancel}</li>'
    )


def _ago(moment: float) -> str:
    passed = max(0.0, time.time() - moment)
    if passed < 60:
        return "just now"
    for size, word in ((86_400, "d"), (3600, "h"), (60, "min")):
        if passed >= size:
            return f"{int(passed // size)} {word} ago"
    return "just now"


def _button(
    action: str, text: str, label: str = "", target: str | int = "", *, disabled: bool = False, confirm: str = ""
) -> str:
    """A button whose clicks the page's handler gets; see `page.js`."""
    extra = f' aria-label="{escape(label)}"' if label else ""
    extra += f' data-confirm="{escape(confirm)}"' if confirm else ""
    extra += " disabled" if disabled else ""
    return (
        f'<button type="button" class="sr-button" data-action="{action}" data-id="{escape(str(target))}"{extra}>'
        f"{escape(text)}</button>"
    )
