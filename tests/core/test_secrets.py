"""Keys of known shapes are found wherever they stand, and what only looks like one is left alone.

The samples are put together here from parts and chance, so that no key stands in this file.
"""

import base64
import random
import string
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.core.secrets import find, mask, masked

LETTERS = string.ascii_letters + string.digits
URL_SAFE = LETTERS + "-_"


def chance(length: int, alphabet: str = LETTERS, seed: int = 1) -> str:
    """Characters of a token; one of each sort is among the first, as in any real one of this length."""
    drawn = random.Random(seed).choices(alphabet, k=length)
    for place, sort in enumerate((string.digits, string.ascii_lowercase, string.ascii_uppercase)):
        if set(sort) & set(alphabet):
            drawn[place] = next(c for c in sort if c in alphabet)
    return "".join(drawn)


def pem(kind: str = "RSA PRIVATE KEY", line_end: str = "\n") -> str:
    body = [chance(64, LETTERS + "+/", seed) for seed in range(12)]
    return line_end.join([f"-----BEGIN {kind}-----", *body, f"-----END {kind}-----"])


TOKENS = [
    ("openai", "sk-proj-" + chance(120, URL_SAFE)),
    ("openai", "sk-svcacct-" + chance(60, URL_SAFE)),
    ("api-key", "sk-" + chance(48)),
    ("api-key", "sk-" + chance(32, "0123456789abcdef")),
    ("api-key", "sk-" + chance(8) + "_" + chance(6) + "-" + chance(12)),
    ("openrouter", "sk-or-v1-" + chance(64, "0123456789abcdef")),
    ("anthropic", "sk-ant-api03-" + chance(93, URL_SAFE)),
    ("github", "ghp_" + chance(36)),
    ("github", "gho_" + chance(36)),
    ("github", "ghs_" + chance(36)),
    ("github", "github_pat_" + chance(22) + "_" + chance(59)),
    ("gitlab", "glpat-" + chance(20, URL_SAFE)),
    ("aws-access-key", "AKIA" + chance(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")),
    ("aws-access-key", "ASIA" + chance(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")),
    ("google", "AIza" + chance(35)),
    ("slack", "xoxb-" + chance(12, string.digits) + "-" + chance(13, string.digits) + "-" + chance(24)),
    ("slack", "xapp-1-" + chance(11) + "-" + chance(64)),
    ("stripe", "sk_live_" + chance(24)),
    ("stripe", "rk_live_" + chance(24)),
    ("npm", "npm_" + chance(36)),
    ("pypi", "pypi-AgEIcHlwaS5vcmc" + chance(140, URL_SAFE)),
    ("huggingface", "hf_" + chance(34, string.ascii_letters)),
    ("groq", "gsk_" + chance(52)),
    ("xai", "xai-" + chance(80)),
    ("jwt", "eyJ" + chance(33, URL_SAFE) + ".eyJ" + chance(70, URL_SAFE) + "." + chance(43, URL_SAFE)),
    ("private-key", pem()),
    ("private-key", pem("PRIVATE KEY", "\r\n")),
    ("private-key", pem("OPENSSH PRIVATE KEY", "\\n")),
    ("private-key", pem("PGP PRIVATE KEY BLOCK")),
    ("private-key", pem().replace("\nEN", '\\n"\n  + "EN')),
]
AROUND = [
    ("", ""),
    ("key = ", ";"),
    ('{"key":"', '"}'),
    ("line\\n", "\\n"),
    ("密钥", "是。"),
    ("(", ")"),
    ("\\u201c", "\n"),
]


@pytest.mark.parametrize(("kind", "token"), TOKENS, ids=lambda value: value[:16].replace("\n", " "))
@pytest.mark.parametrize(("before", "after"), AROUND)
def test_a_token_is_masked_wherever_it_stands(kind: str, token: str, before: str, after: str) -> None:
    text = before + token + after
    assert find(text) == [(len(before), len(before) + len(token), kind)]
    assert mask(text) == f"{before}[redacted:{kind}]{after}"


AWS_SECRET = chance(40, LETTERS + "+/")
IN_CONTEXT = [
    ("Authorization: Bearer {}", chance(40), "bearer"),
    ('"authorization": "bearer {}"', chance(20), "bearer"),
    ("curl -H 'Authorization: Bearer {}'", chance(30, LETTERS + "._"), "bearer"),
    ("postgres://app:{}@db.example.org/app", "correct!horse", "url-password"),
    ("see redis://:{}@127.0.0.1:6379, then", "p@ss-w0rd", "url-password"),
    ("https://example.org/x?user=me&password={}&y=1", "hunter2hunter2", "url-password"),
    ("https://example.org/x?access_token={}#top", chance(30), "url-password"),
    ("aws_secret_access_key = {}", AWS_SECRET, "aws-secret-key"),
    ("export AWS_SECRET_ACCESS_KEY='{}'", AWS_SECRET, "aws-secret-key"),
    ('{{"SecretAccessKey": "{}"}}', AWS_SECRET, "aws-secret-key"),
]


@pytest.mark.parametrize(("text", "secret", "kind"), IN_CONTEXT)
def test_a_secret_without_a_shape_is_known_by_what_stands_before_it(text: str, secret: str, kind: str) -> None:
    assert mask(text.format(secret)) == text.format(f"[redacted:{kind}]")


def test_an_aws_secret_beside_its_id_goes_with_it() -> None:
    id_ = "AKIA" + chance(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
    assert mask(f"me,{id_},{AWS_SECRET}\n") == "me,[redacted:aws-access-key],[redacted:aws-secret-key]\n"


def test_a_private_key_that_is_cut_off_is_masked_as_far_as_it_goes() -> None:
    assert mask("see:\n" + pem()[:400]) == "see:\n[redacted:private-key]"


def test_a_private_key_never_takes_more_than_its_own_string_of_a_json_text() -> None:
    text = '{"a":"' + pem(line_end="\\n")[:300] + '","b":"' + "-----END RSA PRIVATE KEY-----" + '"}'
    assert mask(text) == '{"a":"[redacted:private-key]","b":"-----END RSA PRIVATE KEY-----"}'


HARMLESS = [
    "the risk-based-approach-to-disk-encryption-with-2-keys-and-more-of-them",
    "sk-fading-circle-with-a-very-long-class-name-indeed",
    "task-" + chance(40, "0123456789abcdef"),
    "npm_config_registry=https://example.org npm_lifecycle_event=postinstall",
    "gh_" + chance(36),
    "-----BEGIN PRIVATE KEY----- and -----END PRIVATE KEY----- enclose it",
    "-----BEGIN CERTIFICATE-----\n" + chance(64) + "\n-----END CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----\n" + chance(64) + "\n-----END PUBLIC KEY-----",
    "the bearer of this letter; Authorization: Bearer $TOKEN; Bearer <token>; Bearer YOUR_ACCESS_TOKEN_HERE",
    "postgres://user:password@localhost/db mysql://root:$PASS@db mongodb://{user}:{password}@host http://u:***@h "
    "http://u:[redacted]@h http://u:[redacted:url-password]@h",
    "git@github.com:someone/something.git ssh://git@github.com:22/x http://localhost:8080/a@b https://example.org:443?x@y",
    "https://example.org/?page=2&sort=time&key=value",
    "def f(password=password, token=None): return password == token",
    "sha256:" + chance(64, "0123456789abcdef") + " commit " + chance(40, "0123456789abcdef"),
    str(uuid.UUID(int=random.Random(1).getrandbits(128))),
    "AKIAxEXAMPLE AIzaTooShort xoxb-short ASIAN CINEMA, eyJhbGciOi",
]


@pytest.mark.parametrize("text", HARMLESS, ids=lambda text: text[:24])
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert find(text) == []
    assert mask(text) is text


@given(st.binary(max_size=4000))
def test_encoded_bytes_are_no_secrets(data: bytes) -> None:
    for text in (base64.b64encode(data).decode(), data.hex(), str(list(data))):
        assert mask(text) is text


@given(st.text(max_size=300), st.sampled_from(TOKENS), st.text(max_size=300))
def test_whatever_stands_around_a_token_it_does_not_get_through(
    before: str, sample: tuple[str, str], after: str
) -> None:
    kind, token = sample
    text = f"{before} {token} {after}"
    once = mask(text)
    assert token not in once
    assert f"[redacted:{kind}]" in once
    assert mask(once) == once
    assert masked(text, find(text)) == once


PIECES = [
    *(token[:8] for _, token in TOKENS),
    "://",
    ":",
    "@",
    "?token=",
    "Bearer ",
    " ",
    "a1B2c3",
    "-",
    '"',
    "\\n",
    "\n",
]


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_any_text_masks_to_one_without_secrets(text: str) -> None:
    once = mask(text)
    assert mask(once) == once
    ends = [0, *(edge for start, end, _ in find(text) for edge in (start, end)), len(text)]
    assert ends == sorted(ends)
