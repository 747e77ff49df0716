"""Golden conversations: published chat templates, messages, and the text transformers makes of them.

Run: python3 tools/golden/chat.py tests/golden/chat.json   (made with transformers 5.22.2, jinja2 3.1.6)"""
import json
import sys

from transformers.utils.chat_template_utils import render_jinja_template

CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
QWEN2 = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
         "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
         "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
LLAMA3 = ("{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + "
          "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + "
          "content %}{% endif %}{{ content }}{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}")
ALTERNATE = ("{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
             "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}")
LLAMA2 = ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}"
          "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}" + ALTERNATE +
          "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + "
          "message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
          "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
          "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")
MISTRAL = ("{{ bos_token }}{% for message in messages %}" + ALTERNATE + "{% if message['role'] == 'user' %}"
           "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}"
           "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}")
ZEPHYR = ("{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n"
          "{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n"
          "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
          "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}")
KINDS = [("chatml", CHATML, "<s>", "</s>"), ("chatml", QWEN2, "", "<|endoftext|>"), ("llama3", LLAMA3, "<|begin_of_text|>", "<|eot_id|>"),
         ("llama2", LLAMA2, "<s>", "</s>"), ("mistral", MISTRAL, "<s>", "</s>"), ("zephyr", ZEPHYR, "<s>", "</s>")]
TALKS = [[("user", "Hi")], [("user", " Hi there \n"), ("assistant", "Hello!\nHow are you?"), ("user", "Fine 'n' \"well\" {{ x }}")],
         [("system", "Be brief."), ("user", "Hi"), ("assistant", " Yes. "), ("user", "Why?")]]
cases = []
for name, template, begin, end in KINDS:
    for talk in TALKS:
        if name == "mistral" and talk[0][0] == "system":
            continue
        messages = [dict(role=r, content=c) for r, c in talk]
        text = render_jinja_template([messages], chat_template=template, add_generation_prompt=True, bos_token=begin, eos_token=end)[0][0]
        cases.append(dict(name=name, template=template, begin=begin, end=end, messages=messages, text=text))
with open(sys.argv[1].replace("chat.json", "chatml.jinja"), "w") as f:
    f.write(CHATML)
with open(sys.argv[1], "w") as f:
    json.dump(cases, f, indent=1)
