// A graph of COUNT vertices and sixteen times as many edges, a few vertices having most of them:
// breadth-first searches, then PageRank, over its rows of neighbours.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

using Vertices = std::vector<uint32_t>;

static uint64_t state = 8;
static double part() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 11) * 0x1p-53;
}

struct Graph {
    std::vector<uint64_t> first;
    Vertices neighbours;

    Graph(uint64_t count, const std::vector<std::pair<uint32_t, uint32_t>> &edges)
        : first(count + 1), neighbours(edges.size() * 2) {
        for (auto [a, b] : edges) first[a]++, first[b]++;
        uint64_t sum = 0;
        for (auto &at : first) sum += at, at = sum;
        for (auto [a, b] : edges) neighbours[--first[a]] = b, neighbours[--first[b]] = a;
    }
};

static uint64_t search(const Graph &graph, uint32_t from) {
    Vertices depth(graph.first.size() - 1, UINT32_MAX), queue{from};
    depth[from] = 0;
    uint64_t sum = 0;
    for (size_t at = 0; at < queue.size(); at++) {
        const uint32_t v = queue[at];
        sum += depth[v];
        for (uint64_t i = graph.first[v]; i < graph.first[v + 1]; i++)
            if (const uint32_t n = graph.neighbours[i]; depth[n] == UINT32_MAX)
                depth[n] = depth[v] + 1, queue.push_back(n);
    }
    return sum + queue.size();
}

int main(int, char **arguments) {
    const uint64_t count = strtoull(arguments[1], nullptr, 10);
    std::vector<std::pair<uint32_t, uint32_t>> edges(count * 16);
    for (auto &edge : edges) {
        const double skewed = part();
        edge = {uint32_t(skewed * skewed * skewed * count) * 2654435761u % count, part() * count};
    }
    const Graph graph(count, edges);
    for (uint32_t from = 0; from < 3; from++) printf("%lu ", search(graph, from * 1009));
    std::vector<double> rank(count, 1.0), given(count);
    for (int turn = 0; turn < 4; turn++) {
        for (uint64_t v = 0; v < count; v++)
            given[v] = rank[v] / (graph.first[v + 1] - graph.first[v] + 1);
        for (uint64_t v = 0; v < count; v++) {
            double sum = 0;
            for (uint64_t i = graph.first[v]; i < graph.first[v + 1]; i++)
                sum += given[graph.neighbours[i]];
            rank[v] = 0.15 + 0.85 * sum;
        }
    }
    printf("%.9f %.9f\n", rank[0], rank[count / 2]);
}
