"""DraftGym: learn how far ahead a speculative decoder should draft.

Importing the package loads nothing heavy: `draftgym.runtime`, `draftgym.features` and
`draftgym.state` need numpy and safetensors only; `draftgym.decoder` needs torch.
"""

__version__ = "0.1.0"
