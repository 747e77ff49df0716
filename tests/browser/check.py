#!/usr/bin/env python3
"""check.py PAGE.html - what a user does on a page of attention, in headless Chromium: the chosen token is kept, the address
holds the state, several heads, words, zoom, keys, saved pictures, the whole grid visible.  77 without Chromium."""
import pathlib
import sys

from browser import Browser, run
from measure import CENTRE, settled

SHIFT = 8  # of Input.dispatchMouseEvent


def press(b, selector, which=0, modifiers=0):
    b.evaluate(f"document.querySelectorAll({selector!r})[{which}].scrollIntoView({{block: 'center'}})")
    settled(b)
    b.click(*b.evaluate(CENTRE % (which, selector)), modifiers=modifiers)
    settled(b)


def check(b, url):
    def address():
        return b.evaluate("Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")

    def expect(what, value):
        print("ok  " if value else "FAIL", what)
        return bool(value)

    ok = True
    b.open(url)
    width = b.evaluate("Math.max(...[...document.querySelectorAll('#grid button')].map(e => e.getBoundingClientRect().right))")
    ok &= expect("the whole grid is visible", width <= b.evaluate("innerWidth"))
    ok &= expect("nothing scrolls sideways", b.evaluate("document.documentElement.scrollWidth <= innerWidth"))

    press(b, "input[value=heat]")
    press(b, "#stage")
    token = address().get("token")
    ok &= expect("a click holds a token, and the address says so", token)
    press(b, "#grid button:not(.all)", 3)
    ok &= expect("it is kept when the head changes", address().get("token") == token and address()["head"] == "3")
    press(b, "#grid button.all", 1)
    ok &= expect("and when the layer changes", address().get("token") == token and address()["layer"] == "1")
    press(b, "input[value=lines]")
    ok &= expect("and in another view", address().get("token") == token)
    b.move(5, 5)
    settled(b)
    ok &= expect("the readout has its position", b.evaluate("document.querySelector('#readout .who sup').textContent") == token[1:])

    cells = b.evaluate("document.querySelectorAll('#grid button:not(.all)').length / document.querySelectorAll('#grid button.all').length")
    press(b, "#grid button:not(.all)", int(cells) + 1)
    press(b, "#grid button:not(.all)", int(cells) + 2, SHIFT)
    ok &= expect("Shift adds a head", address()["head"] == "1,2")
    ok &= expect("they have a legend", b.evaluate("document.querySelectorAll('#legend button').length") == 2)
    b.key("Escape")
    settled(b)
    ok &= expect("Esc lets the token go", "token" not in address())

    before = b.evaluate("document.querySelector('#space').clientHeight")
    press(b, "#zoom-in")
    ok &= expect("zoom makes it larger", b.evaluate("document.querySelector('#space').clientHeight") > before)
    press(b, "#zoom-fit")
    ok &= expect("Fit shows all of it", b.evaluate("document.querySelector('#space').clientHeight <= document.querySelector('#stage').clientHeight + 4"))
    b.evaluate("document.querySelector('#stage').focus()")
    b.key("ArrowDown")
    settled(b)
    ok &= expect("arrow keys choose a token", address().get("token") == "r0")

    b.evaluate("""(() => { window.saved = []; HTMLAnchorElement.prototype.click = function () { saved.push(this.download); };
        document.querySelector('#png').click(); document.querySelector('#svg').click(); document.querySelector('#numbers').click(); })()""")
    b.evaluate("new Promise(r => setTimeout(r, 1500))")
    ok &= expect("pictures and numbers are saved", sorted(x[-3:] for x in b.evaluate("saved")) == ["png", "son", "svg"])

    b.open("about:blank")
    b.open(url + "#layer=1&head=0,2&view=heat&token=c4")
    ok &= expect("an address opens what it says", address()["head"] == "0,2" and address()["token"] == "c4" and address()["layer"] == "1")
    for p in b.problems:
        ok = expect(f"no error in the console: {p}", False)
    return ok


def main():
    url, ok = pathlib.Path(sys.argv[1]).resolve().as_uri(), True
    for width, height, dark in ((1400, 900, False), (800, 600, True)):
        print(f"{width} x {height}, {'dark' if dark else 'light'}")
        with Browser(width, height, dark) as b:
            ok &= check(b, url)
    return 0 if ok else 1


if __name__ == "__main__":
    run(main)
