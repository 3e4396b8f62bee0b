"""Chains from data frames, dicts of columns and CSV files."""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched.readers.csv_files import chain_from_csv
from memsched.readers.tables import COLUMNS, chain_from_frame
from memsched.testing import chains
from tables import chain_to_columns, write_chain_csv

TABLE: dict[str, list[Any]] = {
    "forward_time": [None, 1.0, 2.0],
    "backward_time": [None, 2.0, 3.0],
    "activation": [4, 6, 5],
}
EXPECTED = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5])
CSV = "forward_time,backward_time,activation\n,,4\n1,2,6\n2,3,5\n"


def plain(chain: ms.Chain) -> ms.Chain:
    """The chain with what a table holds of it."""
    columns = {key: getattr(chain, key) for key in COLUMNS[1:]}
    return ms.Chain(**columns, names=chain.names)


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@given(chains())
def test_a_frame_is_what_the_constructor_makes_of_its_columns(chain: ms.Chain) -> None:
    assert chain_from_frame(chain_to_columns(chain)) == plain(chain)


@given(chains(), st.data())
def test_a_csv_file_holds_a_chain_exactly(
    tmp_path_factory: pytest.TempPathFactory, chain: ms.Chain, data: st.DataObject
) -> None:
    names = data.draw(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"))
            | st.text(" '\t=a", max_size=3),
            min_size=chain.n,
            max_size=chain.n,
        )
    )
    chain = ms.Chain(**{key: getattr(chain, key) for key in COLUMNS[1:]}, names=names)
    path = tmp_path_factory.mktemp("csv") / "chain.csv"
    write_chain_csv(path, chain)
    assert chain_from_csv(path) == chain


@settings(max_examples=20)
@given(chains(), st.sampled_from(["pandas", "polars"]))
def test_data_frames(chain: ms.Chain, library: str) -> None:
    frames = pytest.importorskip(library)
    assert chain_from_frame(frames.DataFrame(chain_to_columns(chain))) == plain(chain)


def test_pandas_reads_the_same_from_a_file_as_we_do(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    chain = plain(ms.profiles.load("resnet50-224-b32"))
    write_chain_csv(tmp_path / "chain.csv", chain)
    frame = pandas.read_csv(tmp_path / "chain.csv")
    assert chain_from_frame(frame) == chain == chain_from_csv(tmp_path / "chain.csv", name="chain")
    assert chain_from_frame(frame.astype({"saved": "Int64", "name": "string"})) == chain
    assert chain_from_frame(frame[frame.columns[::-1]]) == chain


def test_a_dict_of_arrays() -> None:
    table = {key: np.array(column, dtype=float) for key, column in TABLE.items()}
    assert chain_from_frame(table) == EXPECTED


@pytest.mark.parametrize("empty", [None, math.nan, "", " ", np.nan])
def test_empty_cells_and_defaults(empty: Any) -> None:
    table = {
        "name": [empty, "conv", 7],
        **{key: [empty, *column[1:]] for key, column in TABLE.items() if key != "activation"},
        "activation": TABLE["activation"],
        "gradient": [empty, empty, 2],
        "saved": [empty, 9, empty],
        "forward_overhead": [empty, 1, 2],
        "transient_overhead": [empty, empty, 5],
        "backward_overhead": [empty, empty, 3],
    }
    made = chain_from_frame(table, name="net", resident="1kB", provenance={"source": "by hand"})
    assert made == ms.Chain(
        [1, 2],
        [2, 3],
        [4, 6, 5],
        [0, 6, 2],
        saved=[9, 5],
        forward_overhead=[1, 2],
        transient_overhead=[4, 5],
        backward_overhead=[0, 3],
        names=["conv", "7"],
        name="net",
        resident=1000,
        provenance={"source": "by hand"},
    )


def test_texts_with_units() -> None:
    table = {
        "forward_time": ["", "1 ms", "2e-3"],
        "backward_time": ["", "2 ms", "3000us"],
        "activation": ["4KiB", "6 kB", "5"],
        "gradient": ["4KiB", "", "9"],
    }
    assert chain_from_frame(table) == ms.Chain([1e-3, 2e-3], [2e-3, 3e-3], [4096, 6000, 5], [4096, 6000, 9])


@pytest.mark.parametrize(
    "text",
    [
        CSV,
        CSV.replace("\n", "\r\n"),
        CSV.replace(",", ";"),
        CSV.replace(",", "\t"),
        "\ufeff" + CSV,
        "\n\n" + CSV.replace("\n", "\n\n"),
        CSV.replace("\n1", "\n , ,\n1"),
        '"forward_time", backward_time ,"activation"\n"",,4\n"1","2",6\n2, 3 ,5',
        CSV.replace(",4", ",4 B").replace("1,2,6", "1 s,2000ms,6B"),
    ],
)
def test_forms_of_csv_files(text: str, tmp_path: Path) -> None:
    assert chain_from_csv(written(tmp_path / "c.csv", text), name="chain") == EXPECTED


def test_the_file_names_the_chain(tmp_path: Path) -> None:
    path = written(tmp_path / "my net.v2.csv", CSV)
    assert chain_from_csv(path).name == "my net.v2"
    assert chain_from_csv(str(path), name="n", resident=7).resident == 7


def test_names_that_a_spreadsheet_takes_for_formulas(tmp_path: Path) -> None:
    names = ["=1+1", "'=1+1", "@x", "it's"]
    chain = ms.Chain([1] * 4, [1] * 4, [1] * 5, [1] * 5, names=names)
    write_chain_csv(tmp_path / "c.csv", chain)
    assert "\n'=1+1," in (tmp_path / "c.csv").read_text()
    assert list(chain_from_csv(tmp_path / "c.csv").names) == names


BAD_FILES = {
    "": "is empty; its first line must name the columns",
    "\n \n": "is empty",
    "forward_time\n1\n": "lacks the columns 'backward_time', 'activation'; the columns are name, forward_time",
    CSV.replace(
        "activation", "activations,size"
    ): "has the unknown columns 'activations', 'size'; did you mean 'activation' for 'activations'",
    CSV.replace("forward_time,", "forward_time,backward_time,"): "has the column 'backward_time' twice",
    CSV.replace(",,4\n", ""): "has no row for the input of the network; put it before the stages",
    CSV.partition("\n")[0]: "has no row for the input",
    CSV.partition("1")[0]: "forward_time",  # the input alone
    CSV.replace("1,2,6", "1,2"): "line 3 has 2 cells; it must have 3",
    CSV.replace("1,2,6", "1,2,6,7"): "line 3 has 4 cells",
    CSV.replace("2,3,5", "2,3 mss,5"): "line 4: backward_time is '3 mss'",
    CSV.replace("2,3,5", "2,-3,5"): "line 4: backward_time is '-3'",
    CSV.replace("2,3,5", "nan,3,5"): "line 4: forward_time is 'nan'",
    CSV.replace("2,3,5", "inf,3,5"): "line 4: forward_time is 'inf'",
    CSV.replace("2,3,5", "2,3,5.5"): "line 4: activation is '5.5', which is not a whole number of bytes",
    CSV.replace("2,3,5", "2,3,5 GBs"): "line 4: activation is '5 GBs'",
    CSV.replace("2,3,5", "2,3,"): "line 4: activation is empty",
    CSV.replace("2,3,5", ",3,5"): "line 4: forward_time is empty",
    CSV.replace("2,3,5", "2,3,99999999999999999999"): "line 4: activation is '99999999999999999999', which is more",
    CSV.replace(",,4", ",,"): "has no row for the input",
    CSV.replace("activation\n,,4", "activation,saved\n,,4,4").replace("6\n", "6,6\n").replace(",5", ",5,5"): (
        "line 2: saved is '4'; it must be empty"
    ),
    CSV.replace("activation\n,,4", "activation,saved\n,,4,").replace("6\n", "6,3\n").replace(",5", ",5,5"): (
        "line 3: saved is '3', less than activation, '6'"
    ),
    CSV.replace("1,2", '"1,2'): "line ",
    CSV + "x" * 200_000: "line 5 cannot be read: field larger than",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_bad_files(text: str, tmp_path: Path) -> None:
    path = written(tmp_path / "c.csv", text)
    with pytest.raises(ms.InvalidInputError, match=f"^'{re.escape(str(path))}'.*{BAD_FILES[text]}"):
        chain_from_csv(path)


@pytest.mark.parametrize("content", [CSV.encode("utf-16"), b"\xff\xfe\x00", b"\x00" * 10, CSV.encode() + b"\x00"])
def test_files_that_are_no_text(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ms.InvalidInputError, match=r"c\.csv'"):
        chain_from_csv(written(tmp_path / "c.csv", content))


@given(st.text(st.sampled_from("forward_timeback,activ\n\r\t;\"' 13.-=\0")) | st.text())
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("csv") / "c.csv"
    for content in (text, CSV + text, text + CSV, CSV.replace("2,6", text)):
        path.write_bytes(content.encode("utf-8", "surrogatepass"))
        with contextlib.suppress(ms.InvalidInputError):
            chain_from_csv(path)


BAD_FRAMES: list[tuple[Any, str]] = [
    (None, "frame is None; it must be a data frame"),
    ([[1]], "it must be a data frame"),
    ("table.csv", "it must be a data frame"),
    ({}, "lacks the columns 'forward_time', 'backward_time', 'activation'"),
    ({**TABLE, 3: [1]}, "unknown column '3'"),
    ({**TABLE, "saved": [None]}, "have different lengths"),
    ({**TABLE, "saved": 3}, "column 'saved' of the frame is 3; it must be a list"),
    ({**TABLE, "saved": [None, 9, 4]}, "row 2: saved is 4, less than activation, 5"),
    ({key: column[:0] for key, column in TABLE.items()}, "has no row for the input"),
    ({**TABLE, "activation": [4, 6, True]}, "row 2: activation is True"),
    ({**TABLE, "activation": [4, 6, 5.5]}, "row 2: activation is 5.5"),
    ({**TABLE, "activation": [4, 6, None]}, "row 2: activation is empty"),
    ({**TABLE, "activation": [None, 6, 5]}, "row 0: activation is empty"),
    ({**TABLE, "forward_time": [None, 1, [2]]}, r"row 2: forward_time is \[2\]"),
    ({**TABLE, "forward_time": [3, 1, 2]}, "has no row for the input"),
    ({**TABLE, "forward_time": [None, 1, -2]}, "row 2: forward_time is -2"),
    ({**TABLE, "name": ["x", "y", object]}, "row 2: name is <class 'object'>"),
    ({**TABLE, "name": ["x", "y", "\ud800"]}, "row 2: name is "),
    ({**TABLE, "name": ["x", "y", math.inf]}, "row 2: name is inf"),
]


@pytest.mark.parametrize(("frame", "told"), BAD_FRAMES)
def test_bad_frames(frame: Any, told: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=told):
        chain_from_frame(frame)


def test_pandas_may_have_a_column_twice() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        [[None, None, 4, 4]], columns=["forward_time", "backward_time", "activation", "activation"]
    )
    with pytest.raises(ms.InvalidInputError, match="has the column 'activation' twice"):
        chain_from_frame(frame)


def test_a_lazy_frame_is_refused() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.LazyFrame(chain_to_columns(EXPECTED))
    with pytest.raises(ms.InvalidInputError, match=r"is a LazyFrame, which has no rows yet; give frame.collect\(\)"):
        chain_from_frame(frame)  # and there is no warning of polars'


@pytest.mark.slow
def test_a_hundred_thousand_rows(tmp_path: Path) -> None:
    n = 100_000
    chain = ms.Chain(
        np.arange(n) / 7, np.ones(n), np.arange(n + 1), np.arange(n + 1), names=[f"s{k}" for k in range(n)]
    )
    write_chain_csv(tmp_path / "chain.csv", chain)
    assert chain_from_csv(tmp_path / "chain.csv") == chain


@pytest.mark.parametrize("dtype", ["m8[ns]", "m8", "M8[ns]", "m8[D]"])
@pytest.mark.parametrize("column", ["forward_time", "activation"])
def test_durations_and_dates_are_no_numbers(dtype: str, column: str) -> None:
    columns: dict[str, Any] = {"forward_time": [None, 1], "backward_time": [None, 1], "activation": [4, 6]}
    with pytest.raises(ms.InvalidInputError, match=column):
        ms.Chain.from_frame({**columns, column: np.array([1, 2], dtype=dtype)})


def test_durations_of_polars_are_no_numbers() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(chain_to_columns(EXPECTED)).with_columns(polars.duration(seconds=1).alias("forward_time"))
    with pytest.raises(ms.InvalidInputError, match="column 'forward_time' of the frame has durations or dates"):
        ms.Chain.from_frame(frame)


@pytest.mark.parametrize("cell", ['"conv', '"6"0'])
def test_quotes_that_are_not_closed_swallow_no_stages(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "c.csv"
    path.write_text(f"forward_time,backward_time,activation,name\n,,4MB,x\n1,2,6MB,{cell}\n2,3,5MB,fc\n3,3,3MB,end\n")
    with pytest.raises(ms.InvalidInputError, match="line"):
        ms.Chain.from_csv(path)


def test_names_with_line_ends_are_read_back(tmp_path: Path) -> None:
    chain = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4], names=["a\rb", 'c"\n,;'])
    write_chain_csv(tmp_path / "c.csv", chain)
    assert ms.Chain.from_csv(tmp_path / "c.csv").names == chain.names


def test_blank_names_stay_and_empty_cells_are_numbered(tmp_path: Path) -> None:
    names = ["", " ", "'", "''", "'=1", "\t"]
    chain = ms.Chain([1] * 6, [1] * 6, [1] * 7, [1] * 7, names=names)
    write_chain_csv(tmp_path / "c.csv", chain)
    assert list(chain_from_csv(tmp_path / "c.csv").names) == names
    assert list(chain_from_frame(chain_to_columns(chain)).names) == names
    (tmp_path / "d.csv").write_text("name,forward_time,backward_time,activation\n,,,4\n,1,1,4\n  ,1,1,4\n")
    assert chain_from_csv(tmp_path / "d.csv").names == ("stage 1", "stage 2")


def test_the_bytes_that_stay_may_stand_beside_their_stages(tmp_path: Path) -> None:
    """A table had no place for them, and so commands that read one planned without weights."""
    text = "forward_time,backward_time,activation,resident\n,,4,1kB\n1,2,6,20\n2,3,5,\n"
    path = written(tmp_path / "c.csv", text)
    assert chain_from_csv(path).resident == 1020
    assert chain_from_csv(path, resident=3).resident == 1023


def test_an_index_with_the_name_of_a_column_is_that_column() -> None:
    """It was dropped, and the stages had numbers for names."""
    pandas = pytest.importorskip("pandas")
    table = {"name": ["x", "conv", "fc"], "forward_time": [None, 1, 2], "backward_time": [None, 1, 2]}
    frame = pandas.DataFrame(table | {"activation": [4, 6, 5]})
    assert chain_from_frame(frame.set_index("name")) == chain_from_frame(frame)
    with pytest.raises(ms.InvalidInputError, match="index of the frame is named 'layer', which is no column; name it"):
        chain_from_frame(frame.rename(columns={"name": "layer"}).set_index("layer"))
    with pytest.raises(ms.InvalidInputError, match="the column 'name' twice"):
        chain_from_frame(frame.set_index("name", drop=False))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("forward", "forward_time"), ("layer", "name"), ("Activation", "activation"), ("sved", "saved")],
)
def test_a_mistyped_column_is_told_with_the_one_that_was_meant(typed: str, meant: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=f"unknown column '{typed}'; did you mean '{meant}'"):
        chain_from_frame({typed: [1]})


def test_all_wrong_cells_are_told_at_once(tmp_path: Path) -> None:
    """Who mends a file sees at once what is left."""
    path = tmp_path / "c.csv"
    path.write_text("name,forward_time,backward_time,activation,saved\nx,,,4,\na,abc,2,6,\nb,1,,5,1\nc,1,2,q,\n")
    with pytest.raises(ms.InvalidInputError) as caught:
        ms.Chain.from_csv(path)
    told = str(caught.value)
    assert told.startswith(f"'{path}', line 3: forward_time is 'abc'")
    parts = told.split("; also ")
    assert [part[: part.index(" is ")] for part in parts[1:]] == [
        "line 4: backward_time",
        "line 4: saved",
        "line 5: activation",
    ]
    wrong = {"forward_time": [None, *"abcdefgh"], "backward_time": [None] + [1] * 8, "activation": [4] * 9}
    with pytest.raises(ms.InvalidInputError, match=r"^the frame, row 1: .*; also row 5: [^;]*;[^;]*; and 3 more$"):
        ms.Chain.from_frame(wrong)


@pytest.mark.parametrize(("times", "size", "told"), [(3.1, "6MiB", "6 MiB"), (3.1, 64, "64 B"), (3.1e-3, "6MiB", "")])
def test_numbers_that_are_probably_in_other_units_are_told(times: float, size: str | int, told: str) -> None:
    """No device saves less than 20 MB in a second."""
    table = {"forward_time": [None, times], "backward_time": [None, times], "activation": [size, size]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ms.Chain.from_frame(table)
    words = (
        f"take 6.2 s together, and save {told}: numbers are seconds and bytes; where others are meant, write the units"
    )
    assert [words in str(one.message) for one in caught] == [True] * bool(told)
    assert all(one.filename == __file__ for one in caught)


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        ({"activation": ["1MB", "2MB", 103]}, "row 2: activation is 103 bytes, and other cells have a unit; write it"),
        ({"forward_time": [None, "3 ms", "4"]}, "forward_time is '4' seconds, and other cells have a unit"),
        ({"forward_time": [None, "3 ms", 0], "activation": ["1kB", 0, "2 MB"]}, None),
        ({"forward_time": [None, "3 ms", 4e-3], "activation": ["1000", "2000", 103]}, None),
        ({"activation": [4, "6,000,000", 5]}, None),
    ],
)
def test_a_forgotten_unit_is_told(cells: dict[str, list[Any]], told: str | None) -> None:
    """A forgotten "MB" was a hundred bytes, and a forgotten "ms" four seconds, in silence."""
    table = {"forward_time": [None, 1, 2], "backward_time": [None, 1, 2], "activation": [1, 2, 3]} | cells
    with contextlib.nullcontext() if told is None else pytest.warns(UserWarning, match=told):
        assert chain_from_frame(table).n == 2
