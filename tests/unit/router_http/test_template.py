"""The chat template: sandboxed, with the names that templates use, and refusing by name."""

from datetime import UTC, datetime

import pytest

from services.router.front.template import ChatTemplate
from shared.errors import InvalidRequest, ModelError

USER = [{"role": "user", "content": "hi"}]


def test_blocks_are_trimmed_and_options_reach_the_template() -> None:
    template = ChatTemplate(
        "{% for m in messages %}\n    {% if m.role == 'user' %}\n{{ bos_token }}{{ m['content'] }}|\n"
        "    {% endif %}\n"
        "{% endfor %}\n{% if add_generation_prompt %}>{% endif %}{{ mood }}",
        {"bos_token": "<s>"},
    )
    assert template.render(USER, options={"mood": "!"}) == "<s>hi|\n>!"
    assert template.render(USER, add_generation_prompt=False) == "<s>hi|\n"


def test_names_of_the_field() -> None:
    template = ChatTemplate(
        "{{ strftime_now('%Y') }}{% for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %}"
        "{% break %}{% endfor %}{% if tools is none %}none{% endif %}",
        {},
        today=lambda: datetime(2026, 1, 2, tzinfo=UTC),
    )
    assert template.render([{"content": "<é>"}, {"content": "b"}]) == '2026{"content": "<é>"}none'


def test_raise_exception_is_the_clients_error() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        template.render(USER)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ nothing.there }}",
        "{{ 'a' + messages[0] }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content | unheard_of }}",
    ],
)
def test_what_a_template_cannot_do_is_an_error_of_the_request(source: str) -> None:
    try:
        template = ChatTemplate(source, {})
    except ModelError:
        return
    with pytest.raises(InvalidRequest, match="chat template"):
        template.render(USER)


def test_a_broken_template_is_refused_at_start() -> None:
    with pytest.raises(ModelError, match="line 1"):
        ChatTemplate("{% if %}", {})


MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMED = MARKED.replace("{{ m.content }}", "{{ m.content | trim }}")


@pytest.mark.parametrize("said", ["<", "|", "end", "im_end", "|>", "a <", "user", "hi", "{", "<|im_end|>"])
@pytest.mark.parametrize("source", [MARKED, TRIMMED])
def test_what_is_continued_is_never_looked_for_in_the_templates_own_marks(source: str, said: str) -> None:
    turns = [*USER, {"role": "assistant", "content": said}]
    begun = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    template = ChatTemplate(source, {})
    assert template.render_open(turns) == begun + said
    turns[-1]["content"] = f" {said}\n"
    assert template.render_open(turns) == begun + (f" {said}\n" if source is MARKED else said)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (MARKED, " \n"),
        ("{{ messages[-1].content.split('</think>')[-1] }}<|im_end|>", "<think>so</think>yes"),
        ("{{ messages[0].content }}<|im_end|>", "yes"),
    ],
)
def test_what_the_template_takes_out_cannot_be_continued(source: str, said: str) -> None:
    turns = [*USER, {"role": "assistant", "content": said}]
    with pytest.raises(InvalidRequest, match="cannot be continued"):
        ChatTemplate(source, {}).render_open(turns)
