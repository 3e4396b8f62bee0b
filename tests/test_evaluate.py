"""A plan of anybody's as a result, and what newcomers ask of tables, pictures and reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import memsched as ms
from memsched.cli.app import command_line

CHAIN = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], saved=[9, 5], name="toy")
STEPS = [{"run": name} for name in ("F1", "F2", "loss", "B2", "B1")]


def test_a_plan_by_hand_is_a_result_like_others(tmp_path: Path) -> None:
    mine = ms.Schedule(STEPS, budget="100B", planner={"name": "mine"})
    assert mine.budget == 100
    found = ms.evaluate(CHAIN, mine, beta=2)
    assert (found.planner, found.makespan, found.optimal, found.bound_on) == ("mine", 8.0, True, "once")
    assert found.device == ms.Device(100, 2)
    assert ms.evaluate(CHAIN, mine, device=ms.Device(200, 2)).device.memory == 200
    assert ms.Result.from_json(found.to_json()) == found
    found.plot(tmp_path / "mine.png")
    ms.write_report(found, tmp_path / "mine.html", compare=False)


def test_a_plan_that_runs_again_is_held_against_all_plans() -> None:
    planned = ms.rotor(CHAIN, "60%")
    found = ms.evaluate(CHAIN, planned.schedule, device=planned.device)
    assert (found.makespan, found.bound_on, found.lower_bound) == (planned.makespan, "all", planned.lower_bound)


def test_a_plan_that_names_no_graph_is_not_said_to_be_of_another() -> None:
    short = ms.Schedule(STEPS[:1], budget=100)
    for call in (ms.simulate, ms.validate, lambda *given: ms.evaluate(*given[:2], device=given[2])):
        with pytest.raises(ms.ScheduleError, match="never runs") as error:
            call(CHAIN, short, ms.Device(100))
        assert "made for" not in str(error.value)
    with pytest.raises(ms.ScheduleError, match=r"made for '?other"):
        ms.simulate(CHAIN, ms.Schedule(STEPS[:1], budget=100, graph="other"), ms.Device(100))


def test_the_command_line_reports_bare_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    CHAIN.save("toy.json")
    ms.Schedule(STEPS, budget=100).save("mine.json")
    line = "report mine.json --problem toy.json -b 2B/s -o mine.html --no-compare"
    done = CliRunner().invoke(command_line, line.split(), env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert Path("mine.html").is_file()
    ms.sweep(CHAIN, ["greedy"], memory=["50%"], beta=2, store="s.sqlite")
    done = CliRunner().invoke(command_line, ["report", "s.sqlite", "--problem", "toy.json", "-o", "s.html"])
    assert "a store has its own problems and devices" in done.output
    ms.write_sweep_report("s.sqlite", "s.html")
    assert "toy" in Path("s.html").read_text(encoding="utf-8")


def test_a_frontier_of_all_planners_is_drawn(tmp_path: Path) -> None:
    curve = ms.frontier(CHAIN, 2, planner="auto", points=3)
    curve.plot(tmp_path / "auto.png")
    assert curve._repr_html_()


def test_tables_say_what_they_are_about() -> None:
    found = ms.compare(CHAIN, "50%", 2, planners=["greedy", "rotor"])
    table = found.to_pandas()
    assert list(table.columns[:5]) == ["problem", "planner", "memory", "bandwidth", "status"]
    assert set(table["problem"]) == {"toy"}
    assert set(table["memory"]) == {found["greedy"].device.memory}  # type: ignore[union-attr]
    curve = ms.frontier(CHAIN, 2, planner="rotor", points=2).to_pandas()
    assert list(curve.columns[:5]) == ["problem", "planner", "memory", "memory_percent", "bandwidth"]
    with pytest.raises(KeyError, match="'pofo' was not compared; greedy, rotor were"):
        found["pofo"]
    with pytest.raises(KeyError, match=r"to_pandas\(\)\['makespan'\] is that column"):
        ms.sweep(CHAIN, ["greedy"], memory=["50%"], beta=2)["makespan"]  # type: ignore[call-overload]


def test_bounds_without_a_link_are_told_in_a_sentence() -> None:
    told = str(ms.bounds(CHAIN, "10%"))
    assert "none fits, of plans that run each op once" in told
    assert "none fits of" not in told


def test_names_of_profiles_are_found_by_a_part() -> None:
    assert ms.profiles.names("resnet18") == tuple(one for one in ms.profiles.names() if "resnet18" in one)
    assert ms.profiles.names("nothing") == ()


def test_a_family_and_a_sweep_of_shared_tables_are_summaries() -> None:
    family = ms.profiles.analytic("alexnet", 8)
    assert str(family).startswith("alexnet@")
    assert "up to 8" in str(family)
    assert "one for each batch" in family._repr_html_()
    found = ms.sweep(CHAIN, ["rotor", "greedy"], memory=["60%"], beta=2)
    assert "one table for all memories: rotor;" in str(found)
    assert "one table" not in str(ms.sweep(CHAIN, ["greedy"], memory=["60%"], beta=2))
