"""What a person does in a page: look, type, press keys, make the window narrower."""

from __future__ import annotations

from typing import Any

WIDTHS = (360, 768, 1280, 1440, 1920)


def text(browser: Any, selector: str) -> str:
    script = "return document.querySelector(arguments[0]).textContent"
    return str(browser.execute_script(script, selector))


def texts(browser: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((n) => n.textContent)"
    return list(browser.execute_script(script, selector))


def count(browser: Any, selector: str) -> int:
    script = "return document.querySelectorAll(arguments[0]).length"
    return int(browser.execute_script(script, selector))


def click(browser: Any, selector: str) -> None:
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def mouse(browser: Any, selector: str, frame: str = "body") -> str:
    """Press the mouse on the first match that is in sight in a frame; returns its label."""
    from selenium.webdriver import ActionChains

    settle(browser)
    left, top, label = browser.execute_script(
        "const frame = document.querySelector(arguments[1]).getBoundingClientRect();"
        "for (const node of document.querySelectorAll(arguments[0])) {"
        "  const box = node.getBoundingClientRect(), x = box.left + box.width / 2;"
        "  const y = box.top + box.height / 2, top = document.elementFromPoint(x, y);"
        "  if (box.top > frame.top && box.bottom < frame.bottom && node.contains(top))"
        "    return [x, y, node.ariaLabel];"
        "} return [0, 0, null]",
        selector,
        frame,
    )
    assert top, f"nothing in sight is {selector}"
    actions = ActionChains(browser)
    actions.w3c_actions.pointer_action.move_to_location(round(left), round(top)).click()
    actions.perform()
    return str(label)


def search(browser: Any, words: str) -> None:
    browser.execute_script(
        "const box = document.querySelector('#search'); box.value = arguments[0];"
        "box.dispatchEvent(new Event('input'))",
        words,
    )
    settle(browser)


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def settle(browser: Any) -> None:
    """Wait until what a scroll has begun is drawn, however busy the machine is."""
    browser.execute_async_script(
        "const done = arguments[0], drawn = (then) => requestAnimationFrame(() => then());"
        "setTimeout(() => drawn(() => drawn(done)), 100)"
    )


def focused(browser: Any) -> str:
    """The id of what has the focus, or else its tag and first words."""
    return str(
        browser.execute_script(
            "const node = document.activeElement;"
            "return node.id || `${node.tagName.toLowerCase()} ${node.textContent.slice(0, 40)}`"
        )
    )


def resize(browser: Any, width: int, height: int = 900) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )


def usual_size(browser: Any) -> None:
    """And with the focus, which a test may have moved out of the page."""
    browser.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def print_media(browser: Any, *, dark: bool = False) -> None:
    features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")


def screen_media(browser: Any) -> None:
    browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def box(browser: Any, selector: str) -> dict[str, float]:
    script = "return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()"
    return dict(browser.execute_script(script, selector))
