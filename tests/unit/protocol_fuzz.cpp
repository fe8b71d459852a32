// The fuzz targets of tests/fuzz on their seeds and on mutations of them. The same seed gives the
// same inputs; IPYBOX_FUZZ_SECONDS=300 goes on for so long, IPYBOX_FUZZ_SEED=N starts elsewhere.
// `scripts/test --full` runs the same targets under libFuzzer.
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "../fuzz/targets.hpp"
#include "test_support.hpp"

namespace protocol_fuzz_tests {

namespace fs = std::filesystem;

namespace {

std::vector<std::string> seeds_of(const std::string& target) {
    const fs::path support = ipybox::test::required_environment("IPYBOX_TEST_SUPPORT");
    std::vector<fs::path> files;
    for (const auto& entry :
         fs::directory_iterator(support.parent_path() / "fuzz" / "seeds" / target))
        files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    std::vector<std::string> seeds;
    for (const auto& file : files) seeds.push_back(ipybox::test::read_file(file));
    return seeds;
}

class Mutator {
public:
    Mutator(std::uint64_t seed, std::vector<std::string> seeds)
        : random_(seed), seeds_(std::move(seeds)) {}

    std::string next() {
        std::string text = seeds_[below(seeds_.size())];
        for (auto n = 1 + below(6); n > 0; --n) mutate(text);
        return text;
    }

private:
    std::size_t below(std::size_t n) { return random_() % n; }

    void mutate(std::string& text) {
        static const std::vector<std::string> parts{"\r\n",
                                                    "\n",
                                                    "\r",
                                                    "\r\n\r\n",
                                                    ":",
                                                    "data: ",
                                                    "id: 1\n",
                                                    "\xEF\xBB\xBF",
                                                    std::string(1, '\0'),
                                                    "\xFF",
                                                    "{",
                                                    "}",
                                                    "[",
                                                    "\"",
                                                    "\\u0000",
                                                    "\"id\":",
                                                    "1e999",
                                                    "Content-Length: 3\r\n",
                                                    "Transfer-Encoding: chunked\r\n",
                                                    "HTTP/1.1 100 C\r\n\r\n",
                                                    "0\r\n\r\n",
                                                    "ffffffffffffffff",
                                                    "http://",
                                                    "@",
                                                    "%00",
                                                    "-1",
                                                    ",",
                                                    "*",
                                                    "/99"};
        const auto at = below(text.size() + 1);
        switch (below(6)) {
            case 0:
                text.insert(at, parts[below(parts.size())]);
                break;
            case 1:
                text.erase(at, below(16));
                break;
            case 2:
                if (at < text.size()) text[at] = static_cast<char>(below(256));
                break;
            case 3:
                text.insert(at, text.substr(below(text.size() + 1), below(64)));
                break;
            case 4:
                text += std::string_view(seeds_[below(seeds_.size())]).substr(0, at);
                break;
            default:
                text.insert(at,
                            std::string(below(600), text.empty() ? 'x' : text[below(text.size())]));
        }
        if (text.size() > 8192) text.resize(8192);
    }

    std::mt19937_64 random_;
    std::vector<std::string> seeds_;
};

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
    const char* text = std::getenv(variable);
    return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(protocol_fuzz)

BOOST_AUTO_TEST_CASE(parsers_keep_their_promises) {
    const auto seed = number_from("IPYBOX_FUZZ_SEED", 1);
    const std::chrono::seconds longer(number_from("IPYBOX_FUZZ_SECONDS", 0));
    for (const auto& target : ipybox::fuzz::targets) {
        const auto seeds = seeds_of(target.name);
        BOOST_REQUIRE(seeds.size() >= 3);
        for (const auto& text : seeds) BOOST_CHECK_NO_THROW(target.run(text));
        Mutator mutator(seed, seeds);
        const auto end = std::chrono::steady_clock::now() + longer;
        for (int round = 0; round < 5000 || std::chrono::steady_clock::now() < end; ++round) {
            const auto text = mutator.next();
            try {
                target.run(text);
            } catch (const std::exception& error) {
                const auto kept =
                    fs::temp_directory_path() / ("ipybox-fuzz-" + std::string(target.name));
                ipybox::test::write_file(kept, text);
                BOOST_FAIL(target.name << ", seed " << seed << ", round " << round << ": "
                                       << error.what() << "; the input is in " << kept);
            }
        }
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace protocol_fuzz_tests
