"""Names under which people keep secrets.

In: the name of a member. Out: whether what it holds looks like a credential. The name alone is judged, so
that no value need be read or shown. Names are compared without `-`, `_`, blanks and case; words about
language models (`max_tokens`, `tokenizer`) are not secrets.
"""

from functools import lru_cache
from typing import Final

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


@lru_cache(maxsize=4096)
def looks_secret(name: str) -> bool:
    plain = name.translate(_DROPPED).casefold()
    return plain in _EXACT or plain.endswith(_ENDINGS)
