"""Calls from C beside the same from Rust, in turns: `compare.py TARGET-DIRECTORY [RUNS]`, after
`make capi`. Both are built with the profile of the C libraries.
"""

import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ARGUMENTS = ["2000000", "15", "1024"]


def build(target):
    """The two programs."""
    libraries, in_c = target / "capi", target / "capi/cost"
    compiler = [os.environ.get("CC", "cc"), "-O2", f"-I{libraries}/include"]
    linking = [f"-L{libraries}/lib", "-lpagetide", f"-Wl,-rpath,{libraries}/lib"]
    subprocess.run([*compiler, HERE / "tests/c/cost.c", "-o", in_c, *linking], check=True)
    cargo = [os.environ.get("CARGO", "cargo"), "build", "--quiet", "--profile", "capi"]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target)}
    subprocess.run(
        [*cargo, "-p", "pagetide-capi", "--example", "cost"], check=True, env=environment, cwd=HERE
    )
    return {"C": in_c, "Rust": target / "capi/examples/cost"}


def main():
    target = Path(sys.argv[1]).resolve()
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    programs = build(target)
    if runs == 0:
        return
    seen = {language: [] for language in programs}
    for _ in range(runs):
        for language, program in programs.items():
            line = subprocess.check_output([program, *ARGUMENTS], text=True)
            seen[language].append([float(word) for word in line.split()])
    for index, (name, unit, scale) in enumerate([("pin", "ns", 1), ("take", "ms", 1e6)]):
        middle, columns = {}, []
        for language, rows in seen.items():
            figures = [row[index] / scale for row in rows]
            middle[language] = statistics.median(figures)
            columns.append(
                f"{language} {middle[language]:.2f} {unit} "
                f"({min(figures):.2f} to {max(figures):.2f})"
            )
        print(f"{name}: {', '.join(columns)}; ratio {middle['C'] / middle['Rust']:.3f}")


if __name__ == "__main__":
    main()
