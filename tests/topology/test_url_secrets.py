"""No error about a URL shows the password in it."""

from __future__ import annotations

import pytest

import handfast
from handfast import ConfigError

SECRET = "open-sesame"


@pytest.mark.parametrize(
    "url",
    [
        f"redis:/localhost?password={SECRET}",
        f"redis:localhost?password={SECRET}",
        f"localhost?password={SECRET}",
        f"embedded://?password={SECRET}",
        f"embedded://private?nodes=3&password={SECRET}",
        f"embedded://:{SECRET}@private",
    ],
)
def test_password_in_url_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        handfast.connect(url)
    assert SECRET not in str(raised.value), "the error shows the password"
