#!/usr/bin/env python3
"""Counts and bounds the shape of the code under crates/. No dependencies.

Without options it reports, for every crate: lines, functions over the bound, lines over the
bound, and circles of files (files that need each other, directly or by way of others). With
--path it follows the calls of one function instead.

It reads text, not types. What that means:
- Comments, strings and everything under #[cfg(test)] are left out first.
- An import is a `use`, or a path in code that begins with crate, self, super or a child module.
  `mod x;` is none, nor is a parent's re-export (`pub use`) of what lies below it; names are
  followed through re-exports to the file that defines them.
- A call is a name before a parenthesis. Free functions and `Type::name` are found by their
  imports; a method by the type of what stands before the dot where a field or parameter of this
  name says it, else by its name alone if at most --ambiguous functions have it.

examples:
  count.py                                      everything, exit code 1 if a bound is passed
  count.py --crate store --max-circles 0
  count.py --path crates/pager/src/fault.rs:serve --stop 'crates/store/,lock' --max-files 12
"""
import argparse
import sys
from pathlib import Path

from calls import Calls, follow, functions
from rust import Crate


def circles(edges):
    """Strongly connected sets of more than one file (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = stack[stack.index(node):]
            del stack[stack.index(node):]
            if len(group) > 1:
                found.append(sorted(group))

    for node in list(edges):
        if node not in index:
            visit(node)
    return found


def report(failures, what, count, bound):
    over = bound is not None and count > bound
    print(f"{what}: {count}" + (f" (at most {bound})" if bound is not None else "")
          + (" TOO MANY" if over else ""))
    if over:
        failures.append(what)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2],
                        help="the repository (where this script is, if not said)")
    parser.add_argument("--crate", action="append", help="only these folders of crates/")
    parser.add_argument("--columns", type=int, default=100, help="bound on a line (100)")
    parser.add_argument("--function-lines", type=int, default=70, help="bound on a body (70)")
    parser.add_argument("--list", action="store_true", help="name each long line and function")
    for what in ("lines", "long-lines", "long-functions", "circles", "files", "functions"):
        parser.add_argument(f"--max-{what}", type=int, metavar="N", help=f"fail above N {what}")
    parser.add_argument("--path", metavar="FILE:FUNCTION", help="follow this function's calls")
    parser.add_argument("--stop", default="", metavar="NAMES", help="functions (NAME, TYPE::NAME) "
                        "or beginnings of files that --path does not follow, joined by commas")
    parser.add_argument("--ambiguous", type=int, default=1, metavar="N",
                        help="follow a method of an unknown type if at most N have its name (1)")
    options = parser.parse_args()
    sys.setrecursionlimit(10_000)
    every = [Crate(folder.parent, options.root)
             for folder in sorted(options.root.glob("crates/*/src"))]
    failures = []
    if options.path:
        calls = Calls(every, options.ambiguous)
        reached = follow(calls, options.path, [stop for stop in options.stop.split(",") if stop])
        for function, depth in sorted(reached.items(), key=lambda item: (item[1], item[0].label())):
            print(f"{'  ' * depth}{function.label()} ({function.lines} lines)")
        unclear = sorted(calls.unclear, key=calls.unclear.get, reverse=True)
        print(f"methods of unknown type, not followed: {', '.join(unclear) or 'none'}")
        report(failures, "files", len({f.module.file for f in reached}), options.max_files)
        report(failures, "functions", len(reached), options.max_functions)
        report(failures, "lines", sum(f.lines for f in reached), options.max_lines)
        return bool(failures)
    total = [0, 0, 0, 0]
    for crate in (crate for crate in every if crate.name in (options.crate or [crate.name])):
        long_lines = [f"{name}:{number}: {len(line)} columns" for name, text in crate.texts.items()
                      for number, line in enumerate(text.splitlines(), 1)
                      if len(line) > options.columns]
        long_functions = [f"{f.module.file}:{f.start}: {f.name}: {f.lines} lines"
                          for top in crate.roots for module in top.all()
                          for f in functions(module, crate.code[module.file])
                          if f.lines > options.function_lines]
        edges = crate.edges()
        found = circles(edges)
        counts = (sum(len(text.splitlines()) for text in crate.texts.values()), len(long_lines),
                  len(long_functions), len(found))
        total = [before + more for before, more in zip(total, counts)]
        print("{}: {} lines; {} lines too long, {} functions; {} circles".format(crate.name, *counts))
        for line in (long_lines + long_functions if options.list else []):
            print(f"  {line}")
        for group in found:
            print(f"  circle of {len(group)} files:")
            for file in group:
                for other in sorted(set(edges[file]) & set(group)):
                    print(f"    {file} -> {other}: {', '.join(sorted(edges[file][other]))}")
    for what, count in zip(("lines", "long lines", "long functions", "circles"), total):
        report(failures, what, count, getattr(options, f"max_{what.replace(' ', '_')}"))
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
