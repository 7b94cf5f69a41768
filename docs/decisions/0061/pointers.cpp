// Which misses were named by pages fetched lately? See ../0061-pointer-study.md.
// usage: pointers FILE... (each written by a pager with pointers.patch)
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <unordered_map>
#include <unordered_set>
#include <vector>
using namespace std;

// A miss, and the stored pages that the words of the page fetched for it name, in their order.
struct Fetch {
  uint64_t page;
  vector<uint64_t> named;
};
using Fetches = vector<Fetch>;
const size_t SOON = 512; // a page counts as used if it is missed within so many misses

Fetches load(const char *name) {
  Fetches all;
  FILE *file = fopen(name, "rb");
  uint64_t head[2];
  while (file && fread(head, 8, 2, file) == 2) {
    Fetch fetch{head[0], vector<uint64_t>(head[1])};
    if (fread(fetch.named.data(), 8, head[1], file) != head[1]) break;
    all.push_back(move(fetch));
  }
  if (file) fclose(file);
  return all;
}

double percent(size_t part, size_t whole) { return whole ? 100.0 * part / whole : 0; }

// Reads the first `most` pages that a fetched page names.
void read_all(const Fetches &all, size_t most) {
  unordered_map<uint64_t, vector<uint32_t>> misses;
  for (size_t t = 0; t < all.size(); t++) misses[all[t].page].push_back(t);
  size_t read = 0, used = 0;
  vector<char> covered(all.size());
  for (size_t t = 0; t < all.size(); t++) {
    unordered_set<uint64_t> seen;
    for (uint64_t page : all[t].named) {
      if (seen.size() >= most || !seen.insert(page).second) continue;
      read++;
      auto &of = misses[page];
      auto next = upper_bound(of.begin(), of.end(), (uint32_t)t);
      if (next != of.end() && *next - t <= SOON) used++, covered[*next] = 1;
    }
  }
  size_t count = std::count(covered.begin(), covered.end(), 1);
  printf("  first %3zu named: covers %4.1f %%, %4.1f %% of %zu used\n", most,
         percent(count, all.size()), percent(used, read), read);
}

// How long before a miss its page was named last.
void ages(const Fetches &all) {
  const size_t limits[5] = {1, 16, 64, 256, 1024};
  size_t within[5] = {};
  unordered_map<uint64_t, size_t> last;
  for (size_t t = 0; t < all.size(); t++) {
    auto at = last.find(all[t].page);
    for (int i = 0; i < 5 && at != last.end(); i++) within[i] += t - at->second <= limits[i];
    for (uint64_t page : all[t].named) last[page] = t;
  }
  printf("  named by one of the last 1, 16, 64, 256, 1024 fetched:");
  for (size_t count : within) printf(" %.1f %%", percent(count, all.size()));
  printf("\n");
}

// A miss that is named by word i of a page of pointers fetched lately: reads what the next `most`
// words name. If it has to be `proven`, only when the miss named before was a little before word i.
void walk(const Fetches &all, size_t most, bool proven) {
  unordered_map<uint64_t, pair<uint32_t, uint32_t>> where; // page: the fetch and the word
  unordered_map<uint32_t, uint32_t> walked;                // fetch: the word it has come to
  unordered_map<uint64_t, size_t> pending;                 // page: when it was read
  size_t read = 0, used = 0;
  for (size_t t = 0; t < all.size(); t++) {
    auto was_read = pending.find(all[t].page);
    if (was_read != pending.end()) {
      used += t - was_read->second <= SOON;
      pending.erase(was_read);
    }
    auto at = where.find(all[t].page);
    if (at != where.end() && t - at->second.first <= 1024) {
      auto [fetch, word] = at->second;
      auto before = walked.find(fetch);
      bool goes_on = before != walked.end() && word + 1 > before->second &&
                     word < before->second + 32;
      walked[fetch] = word + 1;
      auto &named = all[fetch].named;
      size_t count = 0;
      for (size_t i = word + 1; i < named.size() && count < most && (goes_on || !proven); i++) {
        if (named[i] == all[t].page) continue;
        count++;
        auto known = pending.find(named[i]);
        if (known != pending.end() && t - known->second <= SOON) continue;
        pending[named[i]] = t;
        read++;
      }
    }
    for (size_t i = 0; i < all[t].named.size(); i++) where[all[t].named[i]] = {t, i};
  }
  printf("  walk%s, next %2zu: covers %4.1f %%, %4.1f %% of %zu used\n", proven ? ", proven" : "",
         most, percent(used, all.size()), percent(used, read), read);
}

int main(int count, char **names) {
  for (int i = 1; i < count; i++) {
    Fetches all = load(names[i]);
    printf("%s: %zu misses\n", names[i], all.size());
    for (size_t most : {512, 16, 4, 1}) read_all(all, most);
    ages(all);
    for (size_t most : {1, 4, 16}) walk(all, most, false), walk(all, most, true);
  }
}
