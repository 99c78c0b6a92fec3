"""How secrets are known: by the names under which people keep them, and by their looks in a text.

In: the name of a member. Out: whether what it holds looks like a credential. The name alone is judged, so
that no value need be read or shown. Names are compared without `-`, `_`, blanks and case; words about
language models (`max_tokens`, `tokenizer`) are not secrets.

In: a text that somebody wrote for people, an exception's perhaps. Out: the same without what opens a door.
"""

import re
from functools import lru_cache
from typing import Final

BLANK: Final = "***"

# A signed token, an API key, the user and password of a URL, a signed query, what opens the door in a
# connection string; whatever is said under the name of a secret (after a colon only what has a digit, for
# "password: must not be empty" is a sentence); a private key.
_NAMED: Final = (
    r"\b[\w-]*(?:(?:access|refresh|auth|api|session|security)[_-]?token|client[_-]?secret"
    r"|(?:api|secret|private|account|access)[_-]?key|password|passwd)[\"']?"
)
CREDENTIAL_FORMS: Final = (
    r"\beyJ[\w-]{5,}\.[\w-]*\.?[\w-]*"
    r"|\blk_[0-9A-Za-z]+_[0-9A-Za-z_-]+|\bwhsec_[A-Za-z0-9+/=_-]+"
    r"|(?<=://)[^\s/@:]*:[^\s/@]*(?=@)"
    r"|(?i:(?<=[?&])(?:sig|signature|x-amz-signature|x-amz-credential|token)=)[^\s&\"']+"
    r"|(?i:\b(?:accountkey|sharedaccesskey|sharedaccesssignature|secret|pwd|x-amz-credential)=)[^\s;&\"']+"
    rf"|(?i:{_NAMED}\s*=\s*[\"']?)[^\s&;,\"']+"
    rf"|(?i:{_NAMED}\s*:\s*[\"']?)(?=[^\s&;,\"']*[0-9])[^\s&;,\"']{{4,}}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
# Short words after `bearer` and words after `basic` are words: "Basic validation failed".
_in_words = re.compile(
    r"(?i:\bbearer\s+)[^\s\"']{12,}"
    r"|(?i:\bbasic\s+)(?=[A-Za-z0-9+/]*(?:[a-z][A-Z]|[0-9]))[A-Za-z0-9+/]{8,}=*|" + CREDENTIAL_FORMS
)

_DROPPED: Final = str.maketrans("", "", "-_ .")

_EXACT: Final = frozenset(
    {
        "passphrase",
        "pwd",
        "secret",
        "secrets",
        "clientsecret",
        "bearer",
        "bearertoken",
        "authorization",
        "credential",
        "credentials",
        "callbacktoken",
        "idtoken",
        "sessiontoken",
        "securitytoken",
        "signingkey",
        "secretaccesskey",
        "accesskeyid",
        "sharedaccesskey",
        "sharedaccesssignature",
        "xapikey",
        "xamzsecuritytoken",
    }
)

# A prefix only says whose secret it is: `db_password`, `openaiApiKey`.
_ENDINGS: Final = (
    "password",
    "passwd",
    "clientsecret",
    "apikey",
    "apitoken",
    "accesskey",
    "secretkey",
    "privatekey",
    "accountkey",
    "accesstoken",
    "refreshtoken",
    "authtoken",
    "sastoken",
    "connectionstring",
)


# In small letters; one of them is in whatever the expression finds. Nearly every text has none, which is seen
# in a hundredth of the time.
_SIGNS: Final = (
    *("bearer", "basic", "eyj", "lk_", "whsec_", "@"),
    *("sig=", "signature=", "credential=", "token", "key", "secret", "password", "passwd", "pwd="),
)


def blank_credentials(text: str) -> str:
    return _in_words.sub(BLANK, text) if holds_credentials(text) else text


def holds_credentials(text: str) -> bool:
    found = text.lower().__contains__
    return any(map(found, _SIGNS)) and _in_words.search(text) is not None


@lru_cache(maxsize=4096)
def looks_secret(name: str) -> bool:
    plain = name.translate(_DROPPED).casefold()
    return plain in _EXACT or plain.endswith(_ENDINGS)
