"""The modules of a crate, read from their text: which file needs which other."""
import re
from collections import defaultdict

ITEM = re.compile(r"\b(?:fn|struct|enum|union|trait|type|const|static|mod|macro_rules!)\s+(\w+)")
USE = re.compile(r"((?:pub(?:\([^)]*\))?\s+)?)\buse\s+([^;]+);")
# Comments, strings and characters; a lifetime is none of them.
BLANKED = re.compile(r"""//[^\n]*|/\*.*?\*/|\bb?c?r(#*)".*?"\1|"(?:\\.|[^"\\])*"|"""
                     r"""'(?:\\x..|\\u\{[^}]*\}|\\.|[^\\'])'""", re.S)


def blank(text):
    """`text` with spaces for everything but line ends."""
    return re.sub(r"[^\n]", " ", text)


def blank_inside(found):
    """A comment made blank; of a string its ends are kept, as the line is one of code."""
    text = found[0]
    return blank(text) if text[0] == "/" else text[0] + blank(text[1:-1]) + text[-1]


def body_end(text, at):
    """Where the item that begins at `at` ends: after its `;`, or the brace that closes it."""
    depth = 0
    for index in range(at, len(text)):
        char = text[index]
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth == 0 and char == "}":
                return index + 1
            if depth < 0:
                return index
        elif char in ";," and depth == 0:
            return index + 1
    return len(text)


def without_tests(text):
    """`text` without the items under #[cfg(test)] and the like."""
    pattern = re.compile(r"#\[cfg\((?:test|all\(test[^\]]*|any\(test, fuzzing\)|fuzzing|loom)\)\]\s*(?:#\[[^\]]*\]\s*)*")
    while found := pattern.search(text):
        end = body_end(text, found.end())
        text = text[:found.start()] + blank(text[found.start():end]) + text[end:]
    return text


def use_paths(tree, prefix=()):
    """The paths in the tree of a `use`, each with the name it is known by."""
    tree = " ".join(tree.split())
    if "{" in tree:
        head, rest = tree.split("{", 1)
        parts = tuple(part.strip() for part in head.split("::") if part.strip())
        depth, start = 0, 0
        rest = rest[:rest.rfind("}")] + ","
        for index, char in enumerate(rest):
            depth += (char == "{") - (char == "}")
            if char == "," and depth == 0:
                if rest[start:index].strip():
                    yield from use_paths(rest[start:index], prefix + parts)
                start = index + 1
        return
    path, _, alias = tree.partition(" as ")
    parts = prefix + tuple(part.strip() for part in path.split("::") if part.strip())
    if parts[-1] == "self":
        parts = parts[:-1]
    yield parts, (alias.strip() or parts[-1])


class Module:
    """A file, or a module written inside one."""

    def __init__(self, path, file, text, parent):
        self.path, self.file, self.parent = path, file, parent
        self.children, self.uses, self.globs = {}, {}, []
        while found := re.search(r"\bmod\s+(\w+)\s*\{", text):  # a module inside this file
            end = body_end(text, found.end() - 1)
            inside = text[found.end():end - 1]
            self.children[found[1]] = Module(path + (found[1],), file, inside, self)
            text = text[:found.start()] + blank(text[found.start():end]) + text[end:]
        self.text = text
        self.code = USE.sub(" ", text)
        self.items = set(ITEM.findall(text))
        self.imports = []  # (path, whether it is re-exported)
        for found in USE.finditer(text):
            for parts, alias in use_paths(found[2]):
                self.imports.append((parts, bool(found[1])))
                if parts[-1] == "*":
                    self.globs.append(parts[:-1])
                elif alias != "_":
                    self.uses[alias] = parts

    def root(self):
        return self if self.parent is None else self.parent.root()

    def all(self):
        yield self
        for child in self.children.values():
            yield from child.all()

    def step(self, name, seen):
        """What `name` is in here: (module, name of an item in it or None)."""
        if name in self.children:
            return self.children[name], None
        if (self.path, name) in seen:
            return None
        seen = seen | {(self.path, name)}
        if name in self.uses:
            return self.find(self.uses[name], seen)
        if name in self.items:
            return self, name
        for glob in self.globs:
            inside = self.find(glob, seen)
            if inside and inside[1] is None and (found := inside[0].step(name, seen)):
                return found
        return None

    def find(self, parts, seen=frozenset()):
        """Follows a path from here; None if it leads out of the crate or to nothing known."""
        here, first = self, True
        for part in parts:
            if part == "crate":
                here = self.root()
            elif part == "super":
                here = here.parent
            elif part == "self":
                pass
            elif part == "*":
                return here, None
            else:
                found = here.step(part, seen)
                if found is None:
                    return None if first else (here, part)
                if found[1] is not None:
                    return found
                here = found[0]
            if here is None:
                return None
            first = False
        return here, None


class Crate:
    """The modules of one crate, and its files' texts."""

    def __init__(self, folder, root):
        self.name, self.folder = folder.name, folder
        manifest = (folder / "Cargo.toml").read_text().split("[dev-dependencies]")[0]
        self.depends = set(re.findall(r'path = "\.\./([\w-]+)"', manifest))
        self.texts = {}
        for file in sorted((folder / "src").rglob("*.rs")):
            self.texts[str(file.relative_to(root))] = file.read_text()
        self.code = {name: without_tests(BLANKED.sub(blank_inside, text))
                     for name, text in self.texts.items()}
        self.roots = []
        for top in ("lib.rs", "main.rs"):
            if (file := folder / "src" / top).exists():
                self.roots.append(self.load((), file, root, None))

    def load(self, path, file, root, parent):
        name = str(file.relative_to(root))
        module = Module(path, name, self.code[name], parent)
        self.below(module, file.parent if file.stem in ("lib", "main", "mod")
                   else file.parent / file.stem, root)
        return module

    def below(self, module, folder, root):
        for child in module.children.values():
            self.below(child, folder / child.path[-1], root)
        for name in re.findall(r"\bmod\s+(\w+)\s*;", module.text):
            for file in (folder / f"{name}.rs", folder / name / "mod.rs"):
                if file.exists():
                    module.children[name] = self.load(module.path + (name,), file, root, module)

    def edges(self):
        """Which file needs which other, and for what names."""
        edges = defaultdict(lambda: defaultdict(set))
        for module in (module for top in self.roots for module in top.all()):
            paths = list(module.imports)
            begin = r"(?<![\w:])((?:crate|self|super)(?:\s*::\s*\w+)+"
            if module.children:
                begin += rf"|(?:{'|'.join(module.children)})(?:\s*::\s*\w+)+"
            for found in re.findall(begin + ")", module.code):
                paths.append((tuple(part.strip() for part in found.split("::")), False))
            for parts, exported in paths:
                found = module.find(parts)
                if not found or found[0].file == module.file:
                    continue
                if exported and found[0].path[:len(module.path)] == module.path:
                    continue
                edges[module.file][found[0].file].add(found[1] or parts[-1])
        return edges
