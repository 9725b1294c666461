"""The science of `python -m draftgym study NAME`: a folder or file each, pages in `docs/studies/`."""
