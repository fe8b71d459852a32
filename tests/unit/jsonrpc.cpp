// JSON-RPC messages, and how they are cut out of a stream.
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <ipybox/mcp/jsonrpc.hpp>
#include <string>
#include <vector>

namespace jsonrpc_tests {

using namespace ipybox;
using namespace ipybox::detail;
using namespace ipybox::mcp;

namespace {

json::object parsed(std::string_view text) { return json::parse(text).as_object(); }

RpcMessage::Kind kind_of_text(std::string_view text) {
    auto message = parsed(text);
    return classify(message).kind;
}

void feed(MessageSplitter& splitter, std::string_view bytes) {
    const auto room = splitter.prepare();
    BOOST_REQUIRE_GE(room.size, bytes.size());
    std::memcpy(room.data, bytes.data(), bytes.size());
    splitter.commit(bytes.size());
}

// Every message that can be had now, as text.
std::vector<std::string> take(MessageSplitter& splitter) {
    std::vector<std::string> messages;
    for (;;) {
        auto next = splitter.next();
        if (!next) throw Error(next.error(), "too large");
        if (!*next) return messages;
        messages.push_back(json::serialize(**next));
    }
}

using Texts = std::vector<std::string>;
}  // namespace

BOOST_AUTO_TEST_SUITE(jsonrpc)

BOOST_AUTO_TEST_CASE(builds_the_four_messages) {
    BOOST_TEST(json::serialize(rpc_request(7, "tools/list", {})) ==
               R"({"jsonrpc":"2.0","id":7,"method":"tools/list","params":{}})");
    BOOST_TEST(json::serialize(rpc_notification("a", {})) == R"({"jsonrpc":"2.0","method":"a"})");
    json::object params;
    params["x"] = 1;
    BOOST_TEST(json::serialize(rpc_notification("a", params)) ==
               R"({"jsonrpc":"2.0","method":"a","params":{"x":1}})");
    BOOST_TEST(json::serialize(rpc_result("s", {})) == R"({"jsonrpc":"2.0","id":"s","result":{}})");
    BOOST_TEST(json::serialize(rpc_error(nullptr, rpc_parse_error, "no")) ==
               R"({"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}})");
}

BOOST_AUTO_TEST_CASE(what_is_built_is_recognised) {
    using Kind = RpcMessage::Kind;
    auto request = rpc_request("id", "method", {});
    auto rpc = classify(request);
    BOOST_TEST((rpc.kind == Kind::request));
    BOOST_TEST(rpc.method == "method");
    BOOST_TEST(rpc.id->as_string() == "id");
    BOOST_TEST(rpc.body->is_object());
    auto notification = rpc_notification("method", {});
    rpc = classify(notification);
    BOOST_TEST((rpc.kind == Kind::notification));
    BOOST_TEST((rpc.body == nullptr));
    auto result = rpc_result(1, {});
    rpc = classify(result);
    BOOST_TEST((rpc.kind == Kind::result));
    BOOST_TEST(integer_of(rpc.id).value() == 1);
    auto error = rpc_error(nullptr, -1, "x");
    rpc = classify(error);
    BOOST_TEST((rpc.kind == Kind::error));
    BOOST_TEST((rpc.id == nullptr));
}

BOOST_AUTO_TEST_CASE(malformed_messages_are_named_so) {
    for (const char* text : {
             R"({})",
             R"({"id":1,"result":{}})",
             R"({"jsonrpc":"1.0","id":1,"result":{}})",
             R"({"jsonrpc":2.0,"id":1,"result":{}})",
             R"({"jsonrpc":"2.0","id":1})",
             R"({"jsonrpc":"2.0","id":1,"result":{},"error":{}})",
             R"({"jsonrpc":"2.0","id":1,"result":{},"method":"x"})",
             R"({"jsonrpc":"2.0","id":null,"method":"x"})",
             R"({"jsonrpc":"2.0","id":1.5,"method":"x"})",
             R"({"jsonrpc":"2.0","id":{},"result":{}})",
             R"({"jsonrpc":"2.0","id":[1],"result":{}})",
             R"({"jsonrpc":"2.0","result":{}})",
             R"({"jsonrpc":"2.0","method":5})",
             R"({"jsonrpc":"2.0","method":"x","params":5})",
             R"({"jsonrpc":"2.0","id":1,"error":"x"})",
         }) {
        auto message = parsed(text);
        const auto rpc = classify(message);
        BOOST_TEST((rpc.kind == RpcMessage::Kind::malformed), text);
        BOOST_TEST(std::string_view(rpc.problem).size() > 0u, text);
    }
    json::object long_method = rpc_notification(std::string(2000, 'x'), {});
    BOOST_TEST((classify(long_method).kind == RpcMessage::Kind::malformed));
    json::object long_id = rpc_result(json::string(2000, 'x'), {});
    BOOST_TEST((classify(long_id).kind == RpcMessage::Kind::malformed));
}

BOOST_AUTO_TEST_CASE(a_malformed_answer_keeps_its_id) {
    auto message = parsed(R"({"jsonrpc":"2.0","id":5,"result":{},"error":{}})");
    const auto rpc = classify(message);
    BOOST_REQUIRE(rpc.id != nullptr);
    BOOST_TEST(rpc.id->as_int64() == 5);
}

BOOST_AUTO_TEST_CASE(unusual_but_correct_messages_are_accepted) {
    using Kind = RpcMessage::Kind;
    BOOST_TEST((kind_of_text(R"({"jsonrpc":"2.0","id":0,"result":null})") == Kind::result));
    BOOST_TEST((kind_of_text(R"({"jsonrpc":"2.0","id":"","method":"m"})") == Kind::request));
    BOOST_TEST((kind_of_text(R"({"jsonrpc":"2.0","id":18446744073709551615,"result":1})") ==
                Kind::result));
    BOOST_TEST(
        (kind_of_text(R"({"jsonrpc":"2.0","method":"m","params":[]})") == Kind::notification));
    BOOST_TEST((kind_of_text(R"({"jsonrpc":"2.0","error":{}})") == Kind::error));
}

BOOST_AUTO_TEST_CASE(integers) {
    const json::value small = -5, large = std::uint64_t{1} << 63, real = 1.0;
    BOOST_TEST(integer_of(&small).value() == -5);
    BOOST_TEST(!integer_of(&large));
    BOOST_TEST(!integer_of(&real));
    BOOST_TEST(!integer_of(nullptr));
}

BOOST_AUTO_TEST_CASE(excerpts_are_short_clean_and_valid) {
    BOOST_TEST(excerpt("plain\n\ttext", 100) == "plain\n\ttext");
    BOOST_TEST(excerpt("\x1b[31mred\x07\x7f", 100) == "[31mred");
    BOOST_TEST(excerpt("a\u202Eb", 100) == "ab");
    BOOST_TEST(excerpt("a\xff\xfe z", 100) == "a\uFFFD\uFFFD z");
    BOOST_TEST(excerpt("ääää", 4) == "ää…");
    BOOST_TEST(excerpt("ääää", 5) == "ää…");
    BOOST_TEST(excerpt("ääää", 8) == "ääää");
}

BOOST_AUTO_TEST_CASE(text_size_follows_the_text) {
    const json::value value = json::parse(R"({"a":["xxxxxxxxxx",1,null,true],"b":{"c":"y"}})");
    const auto real = json::serialize(value).size();
    BOOST_TEST(text_size(value) >= real / 2);
    BOOST_TEST(text_size(value) <= real * 2);
}

BOOST_AUTO_TEST_CASE(splits_lines_however_they_arrive) {
    const std::string stream =
        "{\"a\":1}\n{\"b\":\"x\\ny\"}\r\n\n  \r\n\t{\"c\":{}} \n[{\"d\":1},{\"e\":2}]\n";
    const Texts expected = {R"({"a":1})", R"({"b":"x\ny"})", R"({"c":{}})", R"({"d":1})",
                            R"({"e":2})"};
    for (std::size_t chunk = 1; chunk <= stream.size(); ++chunk) {
        MessageSplitter splitter;
        Texts all;
        for (std::size_t at = 0; at < stream.size(); at += chunk) {
            feed(splitter, std::string_view(stream).substr(at, chunk));
            for (auto& message : take(splitter)) all.push_back(std::move(message));
        }
        BOOST_TEST(all == expected, boost::test_tools::per_element());
    }
}

BOOST_AUTO_TEST_CASE(an_unfinished_line_yields_nothing) {
    MessageSplitter splitter;
    feed(splitter, "{\"a\":1}");
    BOOST_TEST(take(splitter).empty());
    feed(splitter, "\n{");
    BOOST_TEST(take(splitter).size() == 1u);
    BOOST_TEST(take(splitter).empty());
}

BOOST_AUTO_TEST_CASE(noise_is_skipped_and_reported) {
    Texts noise, problems;
    MessageSplitter splitter(1024, [&](const BadLine& line) {
        (line.problem.empty() ? noise : problems).emplace_back(line.text);
    });
    feed(splitter,
         "Server running\n{broken\n{\"a\":1}\n[1,2]\n\"text\"\n17\n{\"a\":1} {\"b\":2}\n[\n");
    const Texts expected = {R"({"a":1})"};
    BOOST_TEST(take(splitter) == expected, boost::test_tools::per_element());
    const Texts lines = {"Server running", "\"text\"", "17"};
    BOOST_TEST(noise == lines, boost::test_tools::per_element());
    const Texts broken = {"{broken", "{\"a\":1} {\"b\":2}", "["};
    BOOST_TEST(problems == broken, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(text_that_is_no_unicode_is_repaired) {
    MessageSplitter splitter;
    feed(
        splitter,
        "{\"a\":\"\xff\"}\n{\"a\":\"\xed\xa0\x80\"}\n{\"\\ud83d\":\"x\\uDC00\\\\ud83d\\ud83d\"}\n");
    const Texts expected = {"{\"a\":\"\uFFFD\"}", "{\"a\":\"\uFFFD\"}",
                            "{\"\uFFFD\":\"x\uFFFD\\\\ud83d\uFFFD\"}"};
    BOOST_TEST(take(splitter) == expected, boost::test_tools::per_element());
    BOOST_TEST(splitter.repaired());
    BOOST_TEST(!splitter.repaired());
    // Whole pairs are none of it.
    feed(splitter, "{\"a\":\"\\ud83d\\ude00\"}\n");
    BOOST_TEST(take(splitter).front() == "{\"a\":\"\xf0\x9f\x98\x80\"}");
    BOOST_TEST(!splitter.repaired());
    feed(splitter, std::string_view("\0\0\n", 3));
    BOOST_TEST(take(splitter).empty());
}

BOOST_AUTO_TEST_CASE(what_cannot_be_taken_ends_the_request_it_is_about) {
    Texts asked;
    MessageSplitter splitter(1000, [&](const BadLine& line) {
        asked.push_back(json::serialize(line.id) + " " + std::string(line.problem));
    });
    // Answers become errors, wherever their id stands.
    feed(splitter,
         "{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"mean\":NaN}}\n"
         "{\"result\":{\"id\":1,\"method\":2,\"max\":[-Infinity]},\"id\":\"a\\\"b\",\"jsonrpc\":"
         "\"2.0\"}\n");
    auto errors = take(splitter);
    BOOST_TEST_REQUIRE(errors.size() == 2U);
    constexpr auto problem =
        "holds NaN or an infinity, which JSON has no number for; send null or a string instead";
    BOOST_TEST(errors[0] == json::serialize(rpc_error(7, rpc_parse_error,
                                                      std::string("the answer ") + problem)));
    BOOST_TEST(errors[1] == json::serialize(rpc_error("a\"b", rpc_parse_error,
                                                      std::string("the answer ") + problem)));
    // So do those that are too long, however they come.
    const auto large = "{\"result\":{\"text\":\"" + std::string(2000, 'x') +
                       "\\\"\"},\"jsonrpc\":\"2.0\", \"id\" : 8 }\n{\"n\":1}\n";
    for (const std::size_t size : {1U, 7U, 999U, 5000U}) {
        Texts all;
        for (std::size_t at = 0; at < large.size(); at += size) {
            feed(splitter, std::string_view(large).substr(at, size));
            for (auto& message : take(splitter)) all.push_back(std::move(message));
        }
        const Texts expected = {
            json::serialize(
                rpc_error(8, rpc_invalid_request,
                          "the answer is longer than the limit of 1000 bytes (max_message)")),
            R"({"n":1})"};
        BOOST_TEST(all == expected, boost::test_tools::per_element());
    }
    BOOST_TEST(asked.empty());
    // Requests are for whoever is told of them.
    feed(splitter, "{\"params\":{\"x\":Infinity},\"method\":\"m\",\"id\":9}\n{\"method\":\"" +
                       std::string(2000, 'x') + "\",\"id\":10}\n");
    feed(splitter,
         "{\"id\":{\"id\":1},\"result\":NaN}\n[{\"id\":1,\"result\":NaN}]\n{\"id\":"
         "12345678901234567890123,\"result\":NaN}\n" +
             std::string(2000, 'x') + "\n");
    BOOST_TEST(take(splitter).empty());
    const Texts expected = {
        std::string("9 ") + problem,    "10 is longer than the limit of 1000 bytes (max_message)",
        std::string("null ") + problem, std::string("null ") + problem,
        std::string("null ") + problem, "null "};
    BOOST_TEST(asked == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(depth_is_bounded) {
    const auto nested = [](std::size_t depth) {
        return "{\"a\":" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}\n";
    };
    int noise = 0;
    MessageSplitter splitter(1 << 20, [&](const BadLine&) { ++noise; });
    feed(splitter, nested(max_message_depth));
    BOOST_TEST(take(splitter).size() == 1u);
    feed(splitter, nested(max_message_depth + 1));
    BOOST_TEST(take(splitter).empty());
    feed(splitter, nested(20'000));
    BOOST_TEST(take(splitter).empty());
    BOOST_TEST(noise == 2);
}

BOOST_AUTO_TEST_CASE(a_line_may_be_as_long_as_the_limit_and_none_is_without_end) {
    const auto line = "{\"a\":\"" + std::string(92, 'x') + "\"}";
    BOOST_TEST(line.size() == 100u);
    MessageSplitter fits(100);
    feed(fits, line + "\n");
    BOOST_TEST(take(fits).size() == 1u);
    MessageSplitter whole(99);
    feed(whole, line + "\n{\"b\":1}\n");
    BOOST_TEST(take(whole).size() == 1u);
    MessageSplitter endless(99);
    const std::string much(std::size_t{64} << 10, 'x');
    std::size_t sent = 0;
    for (; sent <= endless.most_skipped(); sent += much.size()) {
        feed(endless, much);
        const auto next = endless.next();
        if (!next) break;
        BOOST_REQUIRE(!*next);
    }
    BOOST_TEST((endless.next().error() == errc::mcp_protocol));
    BOOST_TEST(sent + much.size() > endless.most_skipped());
}

BOOST_AUTO_TEST_CASE(long_messages_survive_many_reads) {
    MessageSplitter splitter;
    const std::string text(3 << 20, 'x');
    const auto stream = "{\"n\":0}\n{\"long\":\"" + text + "\"}\n{\"n\":1}\n";
    std::size_t at = 0;
    Texts all;
    while (at < stream.size()) {
        const auto room = splitter.prepare();
        BOOST_REQUIRE_GE(room.size, std::size_t{64} << 10);
        const auto size = std::min<std::size_t>({room.size, 65'536, stream.size() - at});
        std::memcpy(room.data, stream.data() + at, size);
        splitter.commit(size);
        at += size;
        for (auto& message : take(splitter)) all.push_back(std::move(message));
    }
    BOOST_REQUIRE_EQUAL(all.size(), 3u);
    BOOST_TEST(all[1].size() == text.size() + 11);
    BOOST_TEST(all[2] == R"({"n":1})");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace jsonrpc_tests
