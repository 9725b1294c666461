"""Train an EAGLE-3 draft head for a target and write it with its model card.

python -m draftgym train-drafter configs/drafter/smollm2.yaml
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from draftgym.configuration import load_yaml
from draftgym.console import print_result
from draftgym.drafter_training.config import DrafterConfig

SCHEMA = "draftgym.train_drafter/1"


def main(argv: Sequence[str]) -> int:
    """Run the verb.

    Args:
        argv: Arguments after the verb.

    Returns:
        Exit status.
    """
    parser = argparse.ArgumentParser(
        prog="python -m draftgym train-drafter",
        description="Train an EAGLE-3 draft head for a target.",
    )
    parser.add_argument("config", type=Path, help="YAML file, such as configs/drafter/smollm2.yaml")
    parser.add_argument("--target", help="replaces the target's model source")
    parser.add_argument(
        "--answers", type=Path, help="file of greedy answers as token ids; replaces data.answers"
    )
    arguments = parser.parse_args(argv)
    config = load_yaml(arguments.config, DrafterConfig)
    if arguments.target:
        config = config.model_copy(update={"target": arguments.target})
    if arguments.answers:
        data = config.data.model_copy(update={"answers": arguments.answers.resolve()})
        config = config.model_copy(update={"data": data})
    from draftgym.drafter_training.pipeline import train_drafter

    print_result(SCHEMA, train_drafter(config, arguments.config.resolve().parent))
    return 0
