// The same in small, for slow systems: one header and a few instances.
#include <vector>

template <int N> struct Counter {
    std::vector<int> seen;
    int count(int upto) {
        for (int i = 0; i < upto; i += N + 1) seen.push_back(i ^ N);
        return seen.size() + (N ? Counter<(N ? N - 1 : 0)>().count(upto) : 0);
    }
};
int run(int seed) { return Counter<9>().count(seed); }
