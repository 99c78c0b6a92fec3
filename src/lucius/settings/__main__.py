"""`python -m lucius.settings` prints the page of all settings."""

import sys

from lucius.settings.documentation import settings_page

if __name__ == "__main__":
    sys.stdout.write(settings_page())
