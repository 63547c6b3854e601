"""All golden sets, in the order in which they are compared."""

from tests.golden.answers import ANSWERS
from tests.golden.errors import CALL_ERRORS, COMMAND_ERRORS
from tests.golden.golden_set import GoldenSet
from tests.golden.help import HELP
from tests.golden.keys import KEYS
from tests.golden.plans import PLANS

SETS: tuple[GoldenSet, ...] = (HELP, COMMAND_ERRORS, CALL_ERRORS, KEYS, ANSWERS, PLANS)
