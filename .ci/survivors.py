"""The mutants that survive, by why they are equivalent: a table for docs/mutation.md, and those without a reason.

A change is recognised by its text (`_KINDS`), or by its function, where all survivors have one reason (`_FUNCTIONS`).
"""

from __future__ import annotations

import ast
import difflib
import fnmatch
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path

_ROOT = Path("mutants/src")
_SURVIVED = (0, 33)


def _same_but(pattern: str, before: str, after: str) -> bool:
    return before != after and re.sub(pattern, "#", before) == re.sub(pattern, "#", after)


_WORK = "how much is worked on at once, or which of two ways is faster: the numbers are the same"
# Why, and whether a line before and after the change is of this kind.
_KINDS: dict[str, Callable[[str, str], bool]] = {
    "`strict=` of `zip`: the lengths are equal by construction, or were compared before": lambda before, after: (
        "strict=" in before and _same_but(r",?\s*(strict=\w+)?\)", before, after)
    ),
    "`dtype=` or `astype` left out or None: NumPy's default is the same type, or numbers are cast where they are "
    "assigned, compared or counted": lambda before, after: _same_but(
        r",?\s*(dtype=[\w.]+)?\)|(astype|stacked)\([\w.]+", before, after
    ),
    "letters of `np.einsum`, consistently renamed": lambda before, after: (
        "einsum" in before and before.lower() == after.lower()
    ),
    "`kind=` of a sort: NumPy accepts upper case; distinct or few keys need no stable sort": lambda before, after: (
        "sort" in before and _same_but(r",?\s*(kind=(None|\"\w+\"))?\)", before, after)
    ),
    "`order=`: the order in memory, not the values": lambda before, after: (
        "order=" in before and _same_but(r",?\s*(order=(None|\"\w+\"))?\)", before, after)
    ),
    "`out=`, or memory to write into: where the result is written, not its values": lambda before, after: (
        _same_but(r",?\s*(out=\w+|weights|None)?\)", before, after) and ("out" in before or "mixed(" in before)
    ),
    "`axis=` that is NumPy's default, or the only axis": lambda before, after: (
        "axis=" in before and _same_but(r",?\s*(axis=-?\d)?\)", before, after)
    ),
    "another number, or None, where `np.where` fills what is masked, multiplied by 0, or divided into 0": (
        lambda before, after: "np.where" in before and _same_but(r"\b(\d+\.\d+|None|np\.nan)\b", before, after)
    ),
    "None where NaN is assigned to floats: NumPy makes it NaN": lambda before, after: _same_but(
        r"= (np\.nan|None)$", before, after
    ),
    _WORK: lambda before, after: "_AT_ONCE" in before and _same_but(r"\b\d+\b", before, after),
    "None where False is assigned to flags: NumPy makes it False": lambda before, after: _same_but(
        r"\] = (False|None)$", before, after
    ),
    "`reshape` to -2 for -1: NumPy infers a length for any negative number": lambda before, after: (
        "reshape(" in before and before.replace("-1)", "-2)") == after.replace("-1)", "-2)")
    ),
    "`typing.cast`, which returns its argument": lambda before, after: "cast(" in before,
    "`initial=` of a maximum or minimum: another one does not change it": lambda before, after: _same_but(
        r"initial=[-+]?[\w.]+", before, after
    ),
    "the second of two elements in a loop that raises at the first": lambda before, after: (
        before.startswith("for ") and before.replace("[:1]", "[:2]") == after
    ),
    "classes of an output are known or unknown together": lambda before, after: (
        "np.isnan(outputs[:1])" in before and before.replace("outputs[:1]", "outputs[:2]") == after
    ),
    "a boundary that no number meets, or where both sides give the same value": lambda before, after: _same_but(
        r"[<>]=?", before, after
    ),
}

_REPLACED = "a value that is replaced before it is read"
_WORDING = "another remedy of what is rejected anyway, or the word of a type that all have"
# Functions whose other survivors have one reason.
_FUNCTIONS = {
    "ofms.core.attacks.xǁAttackǁof": "another number that is out of range, and rejected; " + _WORDING,
    "ofms.core.layers.xǁLayersǁof": "of the empty part only the type is read",
    "ofms.core.logs.xǁJsonFormatterǁformat": "`ensure_ascii=None` is false, too",
    "ofms.core.logs.x_configure_logs": "`StreamHandler(None)` is one of standard error",
    "ofms.core.logs.x_is_logged": "a default that is no level stands for `info`",
    "ofms.core.pooling.x__at": "the second of two equal elements is not read",
    "ofms.core.selection.x_draw_model": "if only the last element of the CDF is above, the last possible model is it",
    "ofms.core.environment.x_*": "no value is as the empty one",
    "ofms.core.packing.partition.xǁPartitionTableǁcluster": _WORK,
    "ofms.core.packing.partition.x_largest_cluster_upload": "every upload is at least 1",
    "ofms.core.choices.x_suggest": "only the first close match is used",
    "ofms.core.draws.x__is_range": _WORK,
    "ofms.core.draws.xǁDrawsǁuniform": _WORK,
    "ofms.core.packing.all_but_one.*": _WORK,
    "ofms.core.packing.bin_count.*": "effort and order of the search: the bounds stay valid",
    "ofms.core.packing.first_fit.*": _WORK,
    "ofms.core.robust.xǁAggregationǁof": "another number that is out of range, and rejected",
    "ofms.core.robust.x_moderate_votes": "the limit of votes that are all 0, or not given",
    "ofms.core.robust.x_total": _WORK,
    "ofms.core.selection.x_draw_sets": _WORK,
    "ofms.policies.blocks.*": _WORK,
    "ofms.policies.controls.x__with_offsets": "an array of one target: NumPy repeats it, or its rest is not read",
    "ofms.policies.explore_then_commit.xǁClientǁplan": "a committed client holds its model alone, which leads then",
    "ofms.policies.follow_the_leader.xǁClientǁstart": _REPLACED,
    "ofms.policies.late_adahedge.x_advance": _WORK,
    "ofms.policies.late_adahedge.x__replay": _WORK,
    "ofms.policies.late_adahedge.x__at": _WORK,
    "ofms.policies.late_hedge.xǁClientǁ_visitors": "as many ranks are below a fraction as below the next whole number",
    "ofms.policies.mixtures.x_hedge_weights": "the largest weight is 1, so that a total above 0 is at least 1",
    "ofms.policies.offsets.x__averaged": "only the mean of it is read",
    "ofms.policies.ofms_ft.xǁClientǁstart": _REPLACED,
    "ofms.policies.pool_memory.x__certain": "a boundary that no number meets, or where both sides give the same value",
    "ofms.policies.pool_memory.x_choose": "a sum that is 1 but for rounding",
    "ofms.policies.pool_memory.x__draw": "the last model with a weight has the last place already, but for rounding",
    "ofms.policies.registry.x_build_policy": "binding arguments does not look at their values",
    "ofms.policies.rules.x__require_weights": "one row for all clients, as long as all are in one block",
    "ofms.policies.session.xǁClientSessionǁadapt": "None where NaN fills floats: NumPy makes it NaN",
    "ofms.policies.session.xǁClientSessionǁlate": "a single number is repeated where it is used",
    "ofms.policies.settings.x__*": _WORDING,
    "ofms.policies.subsets.x_fill_budgets": "`axis=` that is NumPy's default, or the only axis",
    "ofms.policies.subsets.x_holding_probabilities": "`axis=` that is NumPy's default, or the only axis",
    "ofms.policies.fed_poe.xǁClientǁstart": _REPLACED,
    "ofms.policies.fed_poe.xǁClientǁselect": "more columns of counter-based numbers than are used",
    "ofms.policies.budgeted_experts.xǁClientǁstart": _REPLACED,
    "ofms.policies.filling.*": _WORK,
    "ofms.policies.late_hedge.xǁClientǁselect": "more columns of counter-based numbers than are used",
    "ofms.policies.late_rounds.x__columns": _WORK,
    "ofms.policies.late_rounds.x__one_of_each": "a further round in which no key is left",
    "ofms.policies.local_updates.x_last_control": "no control exchange is before the third one",
    "ofms.policies.ofms_ft_theory.x_*": "the tuned rate of a rate that is not tuned",
    "ofms.policies.relative_losses.x__noise": "the sample is repeated once more, or a mass that is 0 in both ways",
    "ofms.policies.relative_losses.x_relative_losses": "adding or subtracting 0 or NaN is the same",
    "ofms.policies.rules.x__blocks": _WORK,
    "ofms.policies.rules.x__within": "a cheap test before the full one, which is then made",
    "ofms.policies.rules.x_require_plan": "a cheap test before the full one, or a letter that is no kind of number",
    "ofms.policies.exponential_weights.*": "a cheap test before the computation, or a guard against slow exponentials",
    "ofms.policies.observations.*": "classes of an output are known or unknown together",
}


@cache
def _functions(module: str) -> dict[str, list[str]]:
    path = _ROOT / f"{module.replace('.', '/')}.py"
    source = (path if path.exists() else path.with_suffix("") / "__init__.py").read_text()
    lines = source.splitlines()
    return {
        node.name: [line.strip() for line in lines[node.lineno - 1 : node.end_lineno]]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and "__mutmut_" in node.name
    }


def change_of(mutant: str) -> tuple[str, str]:
    """The lines of a mutant that differ, before and after."""
    module, name = mutant.rsplit(".", 1)
    found = _functions(module)
    before, after = found[f"{name.rsplit('__mutmut_', 1)[0]}__mutmut_orig"], found[name]
    # The first line has the function's name, which differs.
    lines = list(
        difflib.ndiff(
            [re.sub(r"__mutmut_\w+", "", before[0]), *before[1:]], [re.sub(r"__mutmut_\w+", "", after[0]), *after[1:]]
        )
    )
    parts = [" ".join(line[2:] for line in lines if line.startswith(sign)).strip() for sign in "-+"]
    return parts[0], parts[1]


def reason_for(mutant: str) -> str | None:
    before, after = change_of(mutant)
    function = mutant.rsplit("__mutmut_", 1)[0]
    for reason, fits in _KINDS.items():
        if fits(before, after):
            return reason
    return next((reason for pattern, reason in _FUNCTIONS.items() if fnmatch.fnmatch(function, pattern)), None)


def main() -> int:
    survivors = [
        name
        for meta in sorted(_ROOT.rglob("*.py.meta"))
        for name, code in json.loads(meta.read_bytes())["exit_code_by_key"].items()
        if code in _SURVIVED
    ]
    by_reason: defaultdict[str | None, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in survivors:
        function, _, number = name.rpartition("__mutmut_")
        shown = re.sub(r"^ofms\.|\bxǁ|\bx_", "", function).replace("ǁ", ".")
        by_reason[reason_for(name)][shown].append(number)
    unexplained: dict[str, list[str]] = by_reason.pop(None, defaultdict(list))
    print("| why | survivors | functions, and the numbers of their mutants |\n|---|---:|---|")
    for reason, functions in sorted(by_reason.items(), key=lambda each: -sum(map(len, each[1].values()))):
        listed = "; ".join(f"`{function}` {', '.join(numbers)}" for function, numbers in functions.items())
        print(f"| {reason} | {sum(map(len, functions.values()))} | {listed} |")
    print(f"\nWithout a reason: {sum(map(len, unexplained.values()))}")
    for name in survivors:
        if reason_for(name) is None:
            print(f"{name}:\n  - {' '.join(change_of(name)[:1])}\n  + {change_of(name)[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
