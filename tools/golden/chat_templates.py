"""Golden conversations: published chat templates, and the text transformers makes of messages with them.

Each file of tests/golden/chat holds a template as published with its model, the texts of the model's special
tokens, and cases.  This script makes the cases anew:

    python3 tools/golden/chat_templates.py tests/golden/chat        (made with transformers 5.22, jinja2 3.1.6)

To add a model: python3 tools/golden/chat_templates.py tests/golden/chat NAME tokenizer_config.json"""
import datetime
import glob
import json
import os
import sys

import transformers.utils.chat_template_utils as utils

NOW = 1750000000  # what strftime_now says, in UTC


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, datetime.timezone.utc)


if hasattr(utils, "datetime"):
    utils.datetime = Clock

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Current weather: 'here' & <there>.",
    "parameters": {"type": "object", "properties": {
        "location": {"type": "string", "description": "City, e.g. \"Zürich\""},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer", "minimum": 1}},
        "required": ["location"]}}}
ADD = {"type": "function", "function": {
    "name": "add", "description": "Adds numbers.\nExactly.",
    "parameters": {"type": "object", "properties": {
        "values": {"type": "array", "items": {"type": "number"}, "description": "What to add"},
        "scale": {"type": "number", "default": 0.5}},
        "required": ["values"]}}}


def say(*pairs):
    return [dict(role=role, content=text) for role, text in pairs]


CALL = [dict(type="function", id="abc123XYZ", function=dict(name="get_weather", arguments=dict(location="Zürich", days=2)))]
PLAIN = [
    say(("user", "Hi")),
    say(("user", " Hi there \n"), ("assistant", "Hello!\nHow are you?"), ("user", "Fine 'n' \"well\" {{ x }} <|im_end|>")),
    say(("system", "Be brief."), ("user", "Hi"), ("assistant", " Yes. "), ("user", "Grüße, 世界?")),
    say(("system", ""), ("user", "Why?"), ("assistant", "<think>\nmaybe\n</think>\n\nBecause."), ("user", "Hm.")),
    say(("user", "one"), ("user", "two")),
    say(("system", "Late."), ("assistant", "First."), ("user", "ok")),
]
TOOLS = [
    say(("user", "Weather in Zürich?")),
    say(("system", "Use tools."), ("user", "Weather in Zürich?")),
    say(("user", "Weather?")) + [dict(role="assistant", content="", tool_calls=CALL),
                                 dict(role="tool", name="get_weather", tool_call_id="abc123XYZ", content="{\"t\": 21.5}")],
    say(("system", "Use tools."), ("user", "Weather?")) + [dict(role="assistant", content=None, tool_calls=CALL),
        dict(role="tool", name="get_weather", tool_call_id="abc123XYZ", content="21"), dict(role="assistant", content="It is 21."),
        dict(role="user", content="Thanks")],
]


def case(template, tokens, messages, tools, closed):
    out = dict(messages=messages, closed=closed)
    if tools:
        out["tools"] = tools
    try:
        out["text"] = utils.render_jinja_template([messages], tools=tools, chat_template=template,
                                                  add_generation_prompt=not closed, **tokens)[0][0]
    except Exception as error:  # what the template raises, or what Python does where it is wrong
        out["error"] = str(error)
    return out


def make(one):
    template, tokens = one["template"], one["tokens"]
    cases = [case(template, tokens, m, None, False) for m in PLAIN]
    cases += [case(template, tokens, PLAIN[i], None, True) for i in (1, 2)]
    if "tools" in template:
        cases += [case(template, tokens, m, [WEATHER, ADD], False) for m in TOOLS]
    return dict(one, now=NOW, cases=cases)


def from_config(name, path):
    with open(path) as f:
        config = json.load(f)
    text = lambda v: v["content"] if isinstance(v, dict) else v
    tokens = {k: text(config[k]) for k in ("bos_token", "eos_token", "pad_token", "unk_token") if config.get(k)}
    return dict(name=name, tokens=tokens, template=config["chat_template"])


def main():
    folder = sys.argv[1]
    files = {path: json.load(open(path)) for path in sorted(glob.glob(os.path.join(folder, "*.json")))}
    if len(sys.argv) > 2:
        path = os.path.join(folder, sys.argv[2].replace("/", "--") + ".json")
        files = {path: from_config(sys.argv[2], sys.argv[3])}
    for path, one in files.items():
        with open(path, "w") as f:
            json.dump(make(one), f, indent=1, ensure_ascii=False)
            f.write("\n")


if __name__ == "__main__":
    main()
