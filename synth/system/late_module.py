"""Modules that take long to import, imported at their first use."""

import importlib
from types import ModuleType
from typing import Any


class LateModule(ModuleType):
    """Stands for a module until one of its attributes is used, which imports it."""

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the module.

        Raises:
            AttributeError: the module has no such attribute.
            ImportError: there is no such module.
        """
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)
        return value
