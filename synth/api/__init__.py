"""The functions of the library; `import synth` gives them, and the classes that they use."""

from synth.api import notebook

notebook.register()
