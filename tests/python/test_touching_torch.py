"""tests/touching_torch.txt, which chooses what the oldest PyTorch is tested with."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_each_line_names_what_is_there() -> None:
    lines = (ROOT / "tests/touching_torch.txt").read_text().splitlines()
    chosen = [line.split("#")[0].strip() for line in lines]
    chosen = [name for name in chosen if name]
    assert len(set(chosen)) == len(chosen)
    files = [name for name in chosen if not name.startswith("//")]
    assert len(files) > 10
    for name in chosen:
        assert (ROOT / name.strip("/").removesuffix("...")).exists(), name
