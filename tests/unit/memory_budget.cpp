// The budget that all share, and the bound on what JSON takes when it is parsed.
#include <boost/json/memory_resource.hpp>
#include <boost/json/parse.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/memory_budget.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace unit_memory_budget_tests {

using namespace ipybox;
namespace json = boost::json;

namespace {

// Counts what is allocated, as an allocator's least overhead has it.
class Counting final : public json::memory_resource {
public:
    std::size_t now = 0, peak = 0;

private:
    static std::size_t cost(std::size_t bytes) { return (bytes + 8 + 15) / 16 * 16; }
    // Boost.JSON does not name the same alignment when it gives memory back; no type of its own
    // needs more.
    void* do_allocate(std::size_t bytes, std::size_t align) override {
        BOOST_TEST_REQUIRE(align <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
        now += cost(bytes);
        peak = std::max(peak, now);
        return ::operator new(bytes);
    }
    void do_deallocate(void* memory, std::size_t bytes, std::size_t) override {
        now -= cost(bytes);
        ::operator delete(memory);
    }
    bool do_is_equal(const json::memory_resource& other) const noexcept override {
        return this == &other;
    }
};

// What a parser takes for `text` at its peak, its own places included.
std::size_t peak_of(std::string_view text) {
    Counting counting;
    {
        json::parse_options options;
        options.max_depth = 1000;
        boost::system::error_code error;
        const auto value = detail::parse_exact(text, error, options, nullptr, &counting);
    }
    return counting.peak;
}

std::string repeated(std::string_view part, std::size_t count, std::string_view start = "[",
                     std::string_view end = "0]") {
    std::string text(start);
    for (std::size_t i = 0; i < count; ++i) text += part;
    return text.append(end);
}
}  // namespace

BOOST_AUTO_TEST_SUITE(memory_budget)

BOOST_AUTO_TEST_CASE(reservations_never_exceed_the_budget) {
    MemoryBudget budget(100);
    MemoryReservation one(budget), other(budget);
    BOOST_TEST(one.resize(60));
    BOOST_TEST(!other.resize(41));
    BOOST_TEST(other.size() == 0U);
    BOOST_TEST(other.resize(40));
    BOOST_TEST(!one.resize(61));
    BOOST_TEST(one.size() == 60U);
    BOOST_TEST(one.resize(10));
    BOOST_TEST(other.resize(90));
    BOOST_TEST(!other.resize(~std::size_t{0}));
    MemoryReservation moved = std::move(other);
    BOOST_TEST(budget.used() == 100U);
    moved = MemoryReservation(budget);
    BOOST_TEST(budget.used() == 10U);
    {
        MemoryReservation third(budget);
        BOOST_TEST(third.resize(90));
    }
    one.release();
    BOOST_TEST(budget.used() == 0U);
    budget.ensure(50);
    BOOST_TEST(budget.capacity() == 100U);
    budget.ensure(200);
    BOOST_TEST(one.resize(200));
}

BOOST_AUTO_TEST_CASE(a_part_takes_from_the_whole) {
    MemoryBudget whole(100), one(60, &whole), other(60, &whole);
    MemoryReservation first(one), second(other);
    BOOST_TEST(!first.resize(61));
    BOOST_TEST(first.resize(60));
    BOOST_TEST(!second.resize(41));
    BOOST_TEST(other.used() == 0U);
    BOOST_TEST(second.resize(40));
    BOOST_TEST(whole.used() == 100U);
    first.release();
    BOOST_TEST(one.used() == 0U);
    BOOST_TEST(whole.used() == 40U);
}

BOOST_AUTO_TEST_CASE(threads_share_it) {
    MemoryBudget budget(1000);
    std::atomic<bool> exceeded = false;
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&] {
            for (int n = 0; n < 20'000; ++n) {
                MemoryReservation mine(budget);
                if (mine.resize(300) && budget.used() > 1000) exceeded = true;
            }
        });
    threads.clear();
    BOOST_TEST(!exceeded);
    BOOST_TEST(budget.used() == 0U);
}

BOOST_AUTO_TEST_CASE(decoded_size_is_an_upper_bound) {
    std::vector<std::string> texts = {"",
                                      "0",
                                      "\"",
                                      "[",
                                      "{",
                                      "]",
                                      "\"\\",
                                      "[\"\\\"]",
                                      "\"\\\\\"",
                                      "nonsense [[[",
                                      repeated("0,", 100'000),
                                      repeated("[],", 100'000),
                                      repeated("{},", 100'000),
                                      repeated("[0],", 100'000),
                                      repeated("{\"\":0},", 100'000),
                                      repeated("\"\",", 100'000),
                                      repeated("\"0123456789abcdef\",", 100'000),
                                      repeated("1e308,", 100'000),
                                      repeated("1.5000e+1000,", 100'000),
                                      repeated("-123456789012,", 100'000),
                                      repeated("1234567890.50,", 100'000),
                                      repeated("-12345678901234567890123,", 100'000),
                                      repeated("[123456789012345678901234567890],", 50'000),
                                      repeated("7", 1'000'000, "", ""),
                                      repeated("7", 1'000'000, "[1,", "]"),
                                      repeated("[[[[[[[[0]]]]]]]],", 20'000),
                                      repeated("\\n", 1'000'000, "\"", "\""),
                                      repeated("x", 1'000'000, "\"", "\""),
                                      repeated("\\\"", 1'000'000, "\"", "\""),
                                      repeated("\\\\", 1'000'000, "\"", ""),
                                      repeated("[", 500, "", ""),
                                      repeated("{\"a\":", 500, "", "")};
    std::string keys = "{", long_keys = "{";
    for (int i = 0; i < 50'000; ++i) {
        keys += "\"" + std::to_string(i) + "\":0,";
        long_keys += "\"" + std::to_string(i) + std::string(40, 'k') + "\":{},";
    }
    texts.push_back(keys + "\"x\":0}");
    texts.push_back(long_keys + "\"x\":0}");
    std::mt19937 random(1);
    constexpr std::string_view letters = "[]{}\"\\:,0aeu\n ";
    for (int i = 0; i < 2000; ++i) {
        std::string text = texts[random() % texts.size()].substr(0, 2000);
        for (int n = 0; n < 20; ++n)
            if (!text.empty()) text[random() % text.size()] = letters[random() % letters.size()];
        texts.push_back(text);
    }
    // A parser's places have a least size.
    constexpr std::size_t least = 4096;
    for (const auto& text : texts) {
        const auto peak = peak_of(text), bound = detail::decoded_size(text);
        BOOST_TEST(peak <= bound + least, text.substr(0, 40) << ": " << peak << " over " << bound);
        BOOST_TEST(bound <= text.size() * detail::largest_growth + least);
    }
    // And none that makes ordinary text look large.
    const std::string text = repeated("x", 1'000'000, "{\"text\":\"", "\"}");
    BOOST_TEST(detail::decoded_size(text) < text.size() + least);
}

BOOST_AUTO_TEST_CASE(parse_within_refuses_what_would_take_too_much) {
    boost::system::error_code error;
    const auto parse = [&error](const std::string& text, std::size_t memory) {
        error.clear();
        return detail::parse_within(text, 10, memory, error);
    };
    BOOST_TEST(parse("[1, {\"a\": 2}]", 100'000) == (json::value{1, {{"a", 2}}}));
    BOOST_TEST(!error);
    const auto array = repeated("0,", 100'000);
    parse(array, 1'000'000);
    BOOST_TEST((error == boost::system::errc::not_enough_memory));
    BOOST_TEST(parse(array, 20'000'000).as_array().size() == 100'001U);
    BOOST_TEST(!error);
    parse("[[[[[[[[[[[[]]]]]]]]]]]]", 100'000);
    BOOST_TEST((error == json::error::too_deep));
}

BOOST_AUTO_TEST_CASE(memory_size_counts_everything_in_a_value) {
    const auto size = [](const char* text) { return detail::memory_size(json::parse(text)); };
    BOOST_TEST(size("0") > 0U);
    BOOST_TEST(size("[0,0,0,0]") >= 5 * sizeof(json::value));
    BOOST_TEST(size("{\"key\":0}") > size("{}") + sizeof(json::value));
    BOOST_TEST(size("{\"a long key, longer than others\":0}") > size("{\"key\":0}"));
    BOOST_TEST(size("\"a long text, longer than others\"") > size("\"text\""));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace unit_memory_budget_tests
