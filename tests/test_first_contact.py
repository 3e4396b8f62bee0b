"""What newcomers to the core API tried: it works as they expected, or the error says how."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memsched as ms
from memsched.show.report.comparison import study
from memsched.show.words import held_against
from memsched.study.fit import Fit, Steady, Way

MB = 10**6
REAL = "resnet18-224-b32"
REAL_CHAIN = ms.profiles.load(REAL)
OWN = ms.Chain(
    [3e-3, 2e-3, 1e-3], [6e-3, 4e-3, 2e-3], [4 * MB, 16 * MB, 8 * MB, MB], [0, 16 * MB, 8 * MB, MB], name="own"
)
VALUES = [one for one in map(ms.__dict__.get, ms.__all__) if isinstance(one, type) and dataclasses.is_dataclass(one)]


def refused(call: Callable[[], Any], *said: str) -> None:
    """Each part of the sentence is in it."""
    with pytest.raises((ms.MemschedError, AttributeError)) as caught:
        call()
    for part in said:
        assert part in str(caught.value)


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_values_are_immutable_and_say_so(kind: type) -> None:
    """With slots, dataclasses refuse what is no field by an error of their insides."""
    one = object.__new__(kind)
    for name in ("makespan", "load", dataclasses.fields(kind)[0].name):
        for change in (lambda name=name: setattr(one, name, 3), lambda name=name: delattr(one, name)):
            with pytest.raises(dataclasses.FrozenInstanceError, match=f"^{kind.__name__} is immutable, .*'{name}'"):
                change()


def test_there_are_values() -> None:
    assert {ms.Result, ms.Placement, ms.Buffer, ms.Sweep, ms.Bounds, ms.Frontier} <= set(VALUES)


def test_the_module_lists_what_is_public() -> None:
    assert {one for one in dir(ms) if not one.startswith("__")} == {*ms.__all__, "torch"}


def test_a_placement_is_loaded_as_all_that_is_saved(tmp_path: Path) -> None:
    placement = ms.place([ms.Buffer(0, 2, 3), ms.Buffer(1, 3, 4)])
    placement.save(tmp_path / "p.json")
    assert ms.Placement.load(tmp_path / "p.json") == placement
    assert placement.load == 7
    OWN.save(tmp_path / "c.json")
    refused(lambda: ms.Placement.load(tmp_path / "c.json"), "is a chain", "expected a placement")


@pytest.mark.parametrize("name", ["x.csv", "x.png", "x.pickle"])
def test_documents_are_not_written_into_files_of_another_name(tmp_path: Path, name: str) -> None:
    refused(lambda: OWN.save(tmp_path / name), "would hold JSON, but is named as ", "let it end in .json")
    assert not list(tmp_path.iterdir())


def test_files_of_another_kind_are_told_with_what_reads_them(tmp_path: Path) -> None:
    table, foreign, rows, named = (tmp_path / name for name in ("a.csv", "f.json", "l.json", "c.csv"))
    table.write_text("id,start,end,size\na,0,2,4KiB\n")
    foreign.write_text('{"layers": []}')
    rows.write_text("[1]")
    named.write_text(json.dumps(OWN.to_json()))
    refused(lambda: ms.Chain.load(table), "is a list of buffers, which read_buffers", "; expected a chain")
    refused(lambda: ms.Chain.load(foreign), "has no format", "Chain.from_frame")
    refused(lambda: ms.Chain.load(rows), "is not a JSON object, but a list", "Chain.from_frame")
    refused(lambda: ms.Chain.from_csv(named), "is a chain", "let its name end in .json")
    refused(lambda: ms.read_buffers(foreign), "is a JSON document; expected a list of buffers")
    refused(lambda: ms.read_snapshot(table), "is named as CSV; expected a memory snapshot of PyTorch")
    assert ms.read_buffers(table) == (ms.Buffer(0, 3, 4096, name="a"),)  # the end is the last tick


def test_a_search_has_the_larger_bound_of_both() -> None:
    """The bound on all plans with whole tensors is above that on plans that may cut them into pieces."""
    known = ms.bounds(OWN, "40%", "12GB/s")
    found = ms.offload(OWN, "40%", "12GB/s", moves=64)
    assert known.best < found.lower_bound == pytest.approx(known.recompute)
    assert (found.optimal, found.bound_on) == (True, "all")
    assert ms.validate(found).proven
    assert ms.Result.from_json(found.to_json()).optimal
    assert "18.2 ms of plans that run each op once, also in pieces; 18.33 ms of all" in str(known)
    above = ms.bounds(ms.profiles.load("resnet101-224-b32"), "40%", "12.2GB/s")
    assert "best           229.8 ms of all plans with whole tensors; 340.7 ms of plans that run each op once\n" in str(
        above
    )
    curve = ms.frontier(OWN, "12GB/s", planner="offload", memory=[1, "40%"], time_limit=0.01)
    assert [str(gap) for gap in curve.gap] == ["nan", "0.0"]


def test_a_plan_alone_is_held_against_the_larger_bound_of_its_kinds() -> None:
    """The same plan had a gap of 0.30 % as a result and of 48.71 % alone."""
    chain = ms.profiles.load("resnet101-224-b32")
    for planner, on in (("greedy", "once"), ("rotor", "all")):
        found = ms.plan(chain, "40%", "12.2GB/s", planner=planner)
        alone = ms.validate(chain, found.schedule, found.device)
        assert alone.bound_on == on
        assert alone.lower_bound >= ms.validate(found).lower_bound * (1 - 1e-9)


def test_a_gap_says_which_bound_it_is_to() -> None:
    of, once, whole = (
        "largest bound that any of these planners proves",
        "run each op once",
        "all plans with whole tensors",
    )
    several = str(ms.compare(REAL_CHAIN, "40%", "12GB/s", planners=["greedy", "rotor"]))
    assert f"gap: to the {of} on plans that {once}, in graph order (greedy), on {whole} (rotor)" in several
    assert "gap: to the bound on plans" in str(ms.compare(REAL_CHAIN, "40%", "12GB/s", planners=["greedy"]))
    plans = [("offload", ms.greedy(REAL_CHAIN, "40%", "12GB/s")), ("offload", ms.rotor(REAL_CHAIN, "40%", 0))]
    told = held_against("gap", plans, shared=False)
    assert (
        told
        == f"gap: to the bound on plans that {once}, in graph order (offload in part), on {whole} (offload in part)"
    )


def test_a_plan_without_a_link_is_refused_for_that() -> None:
    """It spoke of any transfers, and gave two memories."""
    refused(
        lambda: ms.plan(OWN, "50%"),
        "there is no plan for 'own' in 50% (",
        "), without a link (beta is 0, missing or next to nothing), however much is recomputed: all ",
        "comes nearest, needs at least ",
    )
    refused(lambda: ms.plan(OWN, "0%", "12GB/s", planner="rotor"), "needs at least")
    refused(lambda: ms.plan(OWN, 20), '20 B (did you mean "20%"?)')
    refused(lambda: ms.plan(REAL_CHAIN, 600), '600 B (did you mean "600MB"?)')
    refused(lambda: ms.plan(REAL_CHAIN, 5), '5 B (did you mean "5%"?)')


def test_what_a_function_does_not_take_is_told_with_what_does(tmp_path: Path) -> None:
    plan = ms.greedy(OWN, "100%", "12GB/s")
    refused(lambda: ms.plot([plan, plan]), "plot draws one Result; write_report takes several")
    ms.sweep(REAL, "greedy", memory=["40%"]).to_csv(tmp_path / "s.csv")
    refused(lambda: ms.Result.load(tmp_path / "s.csv"), "the figures of a sweep or a comparison", "store of a sweep")


def test_a_sweep_is_drawn_and_its_arguments_may_stand_alone(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    OWN.save(tmp_path / "own.json")
    table = ms.sweep(tmp_path / "own.json", ["greedy"], memory="40%", beta="12GB/s")
    assert [row["status"] for row in table.rows] == ["planned"]
    assert ms.plot_sweep(table).axes[0].get_title(loc="left") == "own, 12 GB/s"


def test_memories_that_were_meant_as_percentages() -> None:
    chain = ms.profiles.load(REAL)
    told = ("in bytes, far too little", 'did you mean ["20%", "40%"]?')
    refused(lambda: ms.sweep(chain, ["rotor"], memory=[20, 40]), *told)
    refused(lambda: ms.frontier(chain, "12GB/s", memory=[20, 40]), *told)
    refused(lambda: ms.sweep(chain, ["rotor"], memory=range(0, 101, 20)), '["0%", "20%", "40%", ..]')
    refused(lambda: ms.sweep(chain, memory={"from": "0%"}), "as in ['0%', '50%', '100%']", "memsched sweep")


def test_why_a_planner_needs_more() -> None:
    chain, graph = ms.profiles.load(REAL), ms.profiles.load_graph(REAL)
    refused(lambda: ms.rotor(chain, "1%"), "each stage alone fits", "offloads nothing", "it needs at least 8.47%")
    refused(lambda: ms.rotor(chain, "500MB"), "some stage does not fit")
    refused(lambda: ms.olla(graph, 100), 'did you mean "100%"', "its arena does not fit", "it needs at least 786.1 MiB")


def test_names_of_planners_in_place_of_others() -> None:
    refused(lambda: ms.compare(OWN, "40%", 8, planners=[]), "planners is empty", "leave it out")
    refused(lambda: ms.compare(OWN, "40%", 8, planners="all"), "leave it out")
    refused(lambda: ms.frontier(OWN, 8, planner=["rotor", "pofo"]), "give one name")  # type: ignore[arg-type]  # wrong on purpose


def test_calls_with_other_arguments() -> None:
    refused(lambda: ms.Buffer(start=0, stop=3, size=4), "did you mean 'end'?")  # type: ignore[call-arg]  # wrong on purpose
    refused(lambda: ms.profiles.graph_names("x"), "graph_names takes 0 positional arguments")  # type: ignore[call-arg]  # wrong on purpose
    refused(lambda: ms.profiles.load("resnet-18"), "similar names: resnet18-1000-b2")


def test_columns_are_told_one_by_one() -> None:
    table = {"fwd": [1], "bwd": [2], "activation": [3]}
    refused(lambda: ms.Chain.from_frame(table), "did you mean 'forward_time' for 'fwd', 'backward_time' for 'bwd'?")
    refused(lambda: ms.Chain.from_frame({"": [0], **table}), "write it with index=False")
    refused(lambda: ms.Chain.from_frame([{"activation": 1}] * 99), "pandas.DataFrame(rows) makes one")
    with pytest.raises(ms.InvalidInputError) as caught:
        ms.Chain.from_frame([{"activation": 1}] * 99)
    assert len(str(caught.value)) < 400


def test_comparisons_name_memories_as_they_were_written() -> None:
    assert "no plan; fits in 56.43%" in str(
        ms.compare(ms.profiles.load(REAL), "40%", "12GB/s", planners="greedy,tflms")
    )


def test_a_list_for_a_quantity_is_told_the_texts() -> None:
    """`["40%"]` was told to be a whole number of bytes."""
    chain = ms.profiles.load("resnet18-224-b32")
    with pytest.raises(ms.InvalidInputError, match=r"M is \['40%'\].*; write 8GiB .*, or 40% \(0%: min_memory"):
        ms.plan(chain, ["40%"])  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ms.InvalidInputError, match=r"beta is \['12GB/s'\].*; write 12GB/s"):
        ms.plan(chain, "40%", ["12GB/s"])  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ms.InvalidInputError, match=r"capacity is \['1KiB'\].*; write 8GiB"):
        ms.place([ms.Buffer(0, 1, 8)], capacity=["1KiB"])  # type: ignore[arg-type]  # on purpose


def test_what_fits_and_leaves_the_loop_as_it_is_comes_first() -> None:
    """Micro-batches were recommended for a part of a percent, and for what was measured while others had the cores."""

    def told(recompute: float, *, doubted: bool = False) -> str:
        steady = Steady(
            parameters=1, buffers=0, inputs=1, optimizer=0, gradients=1, peak_forward_backward=9, peak_update=0
        )
        ways = [
            Way(name="plain", fits=False, peak_memory=9000, makespan=1.0),
            Way(name="recompute", fits=True, peak_memory=5000, makespan=recompute),
            Way(name="2 micro-batches", fits=True, peak_memory=5000, makespan=1.0),
        ]
        return Fit(name="n", memory=6000, times="t", steady=steady, ways=tuple(ways), doubted=doubted).next_step

    assert told(1.04).startswith("recompute: torch.compile(")
    assert told(1.2) == "split the batch into 2 parts, add up the gradients of loss / 2, and step once for all"
    assert told(9.0, doubted=True).startswith("recompute: torch.compile(")
    assert "which way is the fastest is not known" in told(9.0, doubted=True)


def test_the_input_of_a_table_may_have_times_of_zero() -> None:
    columns: dict[str, list[Any]] = {
        "forward_time": [None, 0.001, 0.002],
        "backward_time": [None, 0.002, 0.003],
        "activation": [4 * 2**20, 4.4 * 2**20, 5e6],
    }
    chain = ms.Chain.from_frame(columns)
    zeros = {"forward_time": [0, 0.001, 0.002], "backward_time": ["0 ms", "2 ms", "3 ms"]}
    assert ms.Chain.from_frame({**columns, **zeros}) == chain
    assert int(chain.activation[1]) == int(4.4 * 2**20)  # a fraction of a byte is dropped
    refused(
        lambda: ms.Chain.from_frame({**columns, "activation": [4, 4.4, 5]}), "activation is 4.4; it must be a whole"
    )


def test_problems_of_a_sweep_that_have_one_name_are_told() -> None:
    chains = [ms.Chain([1], [1], [4, size], [0, size]) for size in (4, 5)]
    with pytest.warns(UserWarning, match="2 problems of the sweep are called 'chain'; give them names"):
        ms.sweep(chains, ["greedy"], memory=["100%"], beta=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ms.sweep([chains[0], chains[0]], ["greedy"], memory=["100%"], beta=1)


def test_a_name_instead_of_a_chain_is_told_how_to_load() -> None:
    for planner in (ms.pofo, ms.rotor, ms.greedy):
        refused(lambda planner=planner: planner("resnet18-224-b32", "40%", "12GB/s"), "profiles.load(name)")
    refused(lambda: ms.profiles.laod, "no attribute 'laod'; did you mean load?")
    refused(lambda: ms.profiles.list, "no attribute 'list'; it has analytic, document, ")


def test_a_plan_moves_nothing_for_nothing() -> None:
    """Of plans that take as long, the one that moves least: with all memory, none has to."""
    graph = ms.to_graph(OWN)
    found = ms.plan(graph, "100%", "12GB/s")
    assert (found.makespan, found.timeline.bytes_out) == (pytest.approx(ms.bounds(graph, "100%").compute), 0)


def test_a_curve_can_be_grouped_by_percent() -> None:
    frame = ms.frontier(REAL_CHAIN, "12GB/s", planner="rotor", memory=["0%", "50%"]).to_pandas()
    assert frame["memory_percent"].tolist() == [0.0, 50.0]
    assert set(frame["ideal"]) == {ms.bounds(REAL_CHAIN, "100%").compute}


def test_the_table_of_a_report_is_that_of_compare() -> None:
    """Curves, by the clock, made some of its rows faster, each time by something else."""
    result = ms.plan(REAL_CHAIN, "40%", "12GB/s", planner="greedy")
    compared = ms.compare(REAL_CHAIN, "40%", "12GB/s")
    found = study(result).outcomes
    for name, one in compared.items():
        if isinstance(one, ms.Result) and name not in ("offload", "selective"):
            other = found[name]
            assert isinstance(other, ms.Result)
            assert other.makespan == one.makespan


def test_what_fits_is_saved_and_read_again(tmp_path: Path) -> None:
    steady = Steady(parameters=1, buffers=0, inputs=1, optimizer=0, gradients=1, peak_forward_backward=9, peak_update=0)
    ways = (
        Way(name="plain", fits=False, peak_memory=9000, makespan=1.0, largest_batch=3),
        Way(name="recompute", fits=True, peak_memory=5000, makespan=None, note="of a kind"),
    )
    fit = Fit(name="n", memory=6000, times="t", steady=steady, ways=ways, assumed=("no loss, none", "b"), doubted=True)
    fit.save(tmp_path / "fit.json")
    assert Fit.load(tmp_path / "fit.json") == fit
    document = fit.to_json()
    for changed, said in (
        ({"fits": True}, "fits and peak_memory of the fit are [True, 9000]; its ways say otherwise"),
        ({"ways": []}, "ways of the fit is []; it must be a list that is not empty"),
        ({"ways": [{"name": "plain"}]}, "ways[0] of the fit lacks 'fits', 'peak_memory', 'makespan'"),
        ({"assumed": [3]}, "assumed[0] of the fit is 3"),
        ({"steady": {**document["steady"], "inputs": -1}}, "inputs of steady of the fit is -1"),
        ({"more": 1}, "the fit has the unknown key 'more'"),
    ):
        refused(lambda changed=changed: Fit.from_json({**document, **changed}), said)
    refused(lambda: ms.Result.load(tmp_path / "fit.json"), "memsched-fit/1")


def test_a_file_of_what_fits_with_any_value_changed_is_read_or_refused() -> None:
    steady = Steady(parameters=1, buffers=0, inputs=1, optimizer=0, gradients=1, peak_forward_backward=9, peak_update=0)
    ways = (Way(name="plain", fits=False, peak_memory=9000, makespan=1.0, largest_batch=3),)
    text = json.dumps(Fit(name="n", memory=6000, times="t", steady=steady, ways=ways, assumed=("a",)).to_json())
    parts = re.split(r'((?<=: )(?:[^\s,\[{}\]"]+|"[^"]*"))', text)  # every second is a value
    assert len(parts) > 40
    for at in range(1, len(parts), 2):
        for other in ("null", '"x"', "-1", "1.5", "true", "[]", "{}", str(2**70), '"\\u001b[31m"'):
            changed = "".join([*parts[:at], other, *parts[at + 1 :]])
            try:
                read = Fit.from_json(changed)
            except ms.MemschedError:
                continue
            assert str(read)
            assert repr(read)
            assert read.next_step
