// Takes a C++ compiler a while: containers and lambdas of INSTANCES different types.
#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

template <int N> struct Key {
    int value;
    bool operator<(const Key &other) const { return value % (N + 2) < other.value % (N + 2); }
    bool operator==(const Key &other) const { return value == other.value; }
};

template <int N> struct std::hash<Key<N>> {
    size_t operator()(const Key<N> &key) const { return key.value * (N + 1); }
};

template <int N> long exercise(int seed) {
    std::map<Key<N>, std::string> names;
    std::unordered_map<Key<N>, std::vector<Key<N>>> groups;
    std::set<std::tuple<Key<N>, int>> seen;
    std::variant<Key<N>, std::string, std::vector<Key<N>>> either;
    for (int i = 0; i < 100; i++) {
        Key<N> key{seed * i};
        names[key] = std::to_string(i);
        groups[key].push_back(key);
        seen.insert({key, i});
        either = groups[key];
    }
    auto &all = std::get<std::vector<Key<N>>>(either);
    std::sort(all.begin(), all.end());
    std::stable_sort(all.begin(), all.end(), [](const auto &a, const auto &b) { return b < a; });
    std::function<long(long)> add = [&](long x) { return x + long(names.size() + seen.size()); };
    auto plus = [&](long sum, const Key<N> &key) { return add(sum) + key.value; };
    return std::accumulate(all.begin(), all.end(), 0L, plus);
}

template <int... N> long all_of(std::integer_sequence<int, N...>, int seed) {
    return (exercise<N>(seed) + ...);
}

long run(int seed) { return all_of(std::make_integer_sequence<int, INSTANCES>(), seed); }
