// A std::map and a std::unordered_map of COUNT entries: filled at random, looked up, thinned.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <unordered_map>

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// Half of what it returns is below a 256th of `count`.
static uint64_t skewed(uint64_t turn, uint64_t count) {
    double part = (mix(turn) >> 11) * 0x1p-53;
    for (int i = 0; i < 3; i++) part *= part;
    return (uint64_t)(part * count);
}

int main(int, char **arguments) {
    const uint64_t count = strtoull(arguments[1], nullptr, 10);
    std::map<uint64_t, uint64_t> tree;
    std::unordered_map<uint64_t, uint64_t> table;
    for (uint64_t i = 0; i < count; i++) {
        tree[mix(i)] = i;
        table[mix(i + count)] = i;
    }
    uint64_t digest = 0;
    for (uint64_t turn = 0; turn < count / 2; turn++) {
        const uint64_t i = skewed(turn, count);
        digest = digest * 31 + tree[mix(i)];
        digest = digest * 31 + table[mix(i + count)]++;
    }
    for (auto at = tree.begin(); at != tree.end();)
        at = at->second % 3 == 0 ? tree.erase(at) : std::next(at);
    for (const auto &[key, value] : tree) digest = digest * 31 + (key ^ value);
    printf("%zu %zu %016lx\n", tree.size(), table.size(), digest);
}
