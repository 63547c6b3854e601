"""The work of `synth ui`."""

from pathlib import Path

from synth.cli.answer.explain import explanation_text
from synth.cli.answer.output import answer, talk
from synth.cli.progress.interrupt import run_interruptibly
from synth.cli.ui import UiRequest
from synth.system.extras import require


def work(request: UiRequest) -> None:
    require("ui", ("starlette", "uvicorn"), "synth ui needs")
    from synth.ui.limits import LOCAL, public
    from synth.ui.serve import LOOPBACK, Address, Page, open_in_browser

    visitors = request.visitors
    visitors.check()
    limits = LOCAL
    if visitors.public:
        limits = public(visitors.search_limit, visitors.work_limit, visitors.most_ops)
    address = Address(visitors.listen or LOOPBACK, request.port or 0, visitors.host or ())
    page = Page(Path.cwd(), limits, explanation_text, address, request.shown)
    answer(page.url)
    talk("open this address in a browser; Ctrl-C ends the page")
    if request.browser and not visitors.public:
        open_in_browser(page.url)

    run_interruptibly(page.run)
