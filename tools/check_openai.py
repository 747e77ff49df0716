#!/usr/bin/env python3
"""check_openai.py [FOVEA] - OpenAI's own Python client against `fovea serve`, as a user would use it.

Needs the package `openai`.  Serves a tiny story model with a chat template, and checks chats, completions, streams,
probabilities, embeddings, models, JSON schemas and errors.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import typing

import openai
import pydantic

HERE = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = sys.argv[1] if len(sys.argv) > 1 else str(HERE / "build/fovea")


def start(folder):
    """The server's process and its address."""
    model = folder / "stories"
    shutil.copytree(HERE / "tests/golden/stories260K", model)
    shutil.copy(HERE / "tests/golden/chatml.jinja", model / "chat_template.jinja")
    (folder / "keys").write_text("test-key-of-the-check\n")
    line = [PROGRAM, "serve", "-m", str(model), "--port", "0", "--api-keys", str(folder / "keys"), "--quiet"]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    for said in process.stderr:
        found = re.search(r"listening at (http://[^\"]*)", said)
        if found:
            return process, found.group(1)
    raise SystemExit("the server has not started")


def check_text(client):
    names = [m.id for m in client.models.list()]
    assert names == ["stories"], names
    assert client.models.retrieve("stories").id == "stories"

    story = client.completions.create(model="stories", prompt="Once upon a time", max_tokens=12, temperature=0)
    assert story.choices[0].text == ", there was a little girl named Lily. She", story
    assert story.usage.completion_tokens == 12

    pieces = client.completions.create(model="stories", prompt="Once upon a time", max_tokens=12, temperature=0, stream=True)
    assert "".join(p.choices[0].text for p in pieces) == story.choices[0].text

    scored = client.completions.create(model="stories", prompt="Once", max_tokens=3, temperature=0, logprobs=2)
    assert len(scored.choices[0].logprobs.tokens) == 3 and len(scored.choices[0].logprobs.top_logprobs[0]) == 2


def check_chat(client):
    ask = [{"role": "system", "content": "Tell stories."}, {"role": "user", "content": "Hello"}]
    reply = client.chat.completions.create(model="stories", messages=ask, max_tokens=16, seed=3, n=2, logprobs=True,
                                           top_logprobs=2)
    assert len(reply.choices) == 2 and reply.choices[0].message.role == "assistant"
    assert len(reply.choices[0].logprobs.content[0].top_logprobs) == 2
    again = client.chat.completions.create(model="stories", messages=ask, max_tokens=16, seed=3, n=2)
    assert [c.message.content for c in again.choices] == [c.message.content for c in reply.choices]

    stream = client.chat.completions.create(model="stories", messages=ask, max_tokens=16, seed=3, stream=True,
                                            stream_options={"include_usage": True})
    text, usage = "", None
    for chunk in stream:
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        usage = chunk.usage or usage
    assert text == reply.choices[0].message.content, (text, reply.choices[0].message.content)
    assert usage.completion_tokens == 16

    seen = client.chat.completions.create(model="stories", messages=ask, max_tokens=4, temperature=0,
                                          extra_body={"attention": {"layers": [-1], "heads": [0]}})
    rows = seen.choices[0].attention["rows"]
    assert len(rows) == 4 and abs(sum(rows[0]["weights"][0][0]) - 1) < 1e-5


def check_schema(client):
    class Pet(pydantic.BaseModel):
        kind: typing.Literal["cat", "dog"]
        name: str
        age: int

    reply = client.chat.completions.parse(model="stories", messages=[{"role": "user", "content": "A pet?"}], max_tokens=400,
                                          seed=1, response_format=Pet)
    assert reply.choices[0].message.parsed.kind in ("cat", "dog"), reply


def check_vectors(client):
    floats = client.embeddings.create(model="stories", input=["a dog", "a cat"], encoding_format="float")
    packed = client.embeddings.create(model="stories", input=["a dog", "a cat"])  # base 64, read by the client
    assert len(floats.data) == 2
    for a, b in zip(floats.data, packed.data):
        assert max(abs(x - y) for x, y in zip(a.embedding, b.embedding)) < 1e-6


def check_errors(client, address):
    for error, call in [
        (openai.NotFoundError, lambda: client.completions.create(model="gpt-4", prompt="a")),
        (openai.BadRequestError, lambda: client.completions.create(model="stories", prompt="a", temperature=-1)),
        (openai.BadRequestError, lambda: client.completions.create(model="stories", prompt="a" * 4000)),
        (openai.AuthenticationError, lambda: openai.OpenAI(base_url=address + "/v1", api_key="wrong-key").models.list()),
    ]:
        try:
            call()
        except error as e:
            assert e.body["message"], e
        else:
            raise AssertionError(f"{error.__name__} was expected")


def main():
    with tempfile.TemporaryDirectory() as folder:
        process, address = start(pathlib.Path(folder))
        try:
            client = openai.OpenAI(base_url=address + "/v1", api_key="test-key-of-the-check", max_retries=0)
            check_text(client)
            check_chat(client)
            check_schema(client)
            check_vectors(client)
            check_errors(client, address)
        finally:
            process.terminate()
            code = process.wait()
        assert code == 0, code
    print(f"openai {openai.__version__}: chats, completions, streams, embeddings, models, JSON schema, errors: fine")


main()
