// What a model is told and asks, in both chat APIs.
#include <boost/test/unit_test.hpp>
#include <ipybox/agent.hpp>

#include "test_support.hpp"

namespace agent_tests {
using namespace ipybox;
using Status = CodeExecutionResult::Status;

namespace {
// The smallest PNG that has a header.
const std::string png = std::string("\x89PNG\r\n\x1a\n", 8) + std::string(20, '\0');

json::object object(std::string_view text) { return json::parse(text).as_object(); }

CodeExecutionResult result(std::string text, std::string error = {}) {
    CodeExecutionResult made;
    if (!error.empty()) made.status = Status::error;
    made.text = std::move(text);
    made.error = std::move(error);
    return made;
}
}  // namespace

BOOST_AUTO_TEST_SUITE(agent)

BOOST_AUTO_TEST_CASE(the_tool_is_spelled_as_each_api_has_it) {
    const auto openai = code_tool(ChatApi::openai);
    BOOST_TEST(openai.at("type") == "function");
    BOOST_TEST(openai.at("function").at("name") == json::value(code_tool_name));
    BOOST_TEST(openai.at("function").at("parameters").at("required").at(0) == "code");
    const auto anthropic = code_tool(ChatApi::anthropic);
    BOOST_TEST(anthropic.at("name") == json::value(code_tool_name));
    BOOST_TEST(anthropic.at("input_schema").at("type") == "object");
}

BOOST_AUTO_TEST_CASE(calls_are_found_and_others_have_a_problem) {
    const auto openai = code_calls(ChatApi::openai, object(R"({"role": "assistant", "tool_calls": [
        {"id": "1", "function": {"name": "execute_ipython_cell", "arguments": "{\"code\": \"x\"}"}},
        {"id": "2", "function": {"name": "execute_ipython_cell", "arguments": "{\"code\": 5}"}},
        {"id": "3", "function": {"name": "execute_ipython_cell", "arguments": "{"}},
        {"id": "4", "function": {"name": "rm", "arguments": "{\"code\": \"x\"}"}},
        {"id": "5"}, 6]})"));
    BOOST_TEST_REQUIRE(openai.size() == 5u);
    BOOST_TEST(openai[0].code == "x");
    BOOST_TEST(openai[0].problem == "");
    for (std::size_t i = 1; i < openai.size(); ++i) {
        BOOST_TEST(openai[i].problem != "");
        BOOST_TEST(openai[i].code == "");
        BOOST_TEST(openai[i].id == std::to_string(i + 1));
    }
    const auto anthropic = code_calls(ChatApi::anthropic, object(R"({"content": [
        {"type": "text", "text": "I will"},
        {"type": "tool_use", "id": "a", "name": "execute_ipython_cell", "input": {"code": "y"}}]})"));
    BOOST_TEST_REQUIRE(anthropic.size() == 1u);
    BOOST_TEST(anthropic[0].id == "a");
    BOOST_TEST(anthropic[0].code == "y");
    BOOST_TEST(code_calls(ChatApi::openai, object(R"({"content": "done"})")).empty());
    BOOST_TEST(code_calls(ChatApi::anthropic, object(R"({"content": "done"})")).empty());
}

BOOST_AUTO_TEST_CASE(a_model_reads_whole_characters_and_is_told_of_the_rest) {
    const ChatCall call{"1", "x", {}};
    ChatLimits limits;
    limits.characters = 3;
    BOOST_TEST(code_answer(call, result("äöü"), limits).text == "äöü");
    BOOST_TEST(code_answer(call, result("äöüß"), limits).text == "äöü\n[cut after 3 characters]");
    BOOST_TEST(code_answer(call, result("")).text == "(no output)");
    const auto failed = code_answer(call, result("out", "ValueError: x"));
    BOOST_TEST(failed.text == "out\nValueError: x");
    BOOST_TEST(failed.is_error);
}

BOOST_AUTO_TEST_CASE(images_are_parts_of_the_messages) {
    const ChatCall call{"7", "plot()", {}};
    auto shown = result("plotted");
    for (int i = 0; i < 3; ++i) {
        shown.displays.push_back({{"image/png", detail::encode_base64(png)}});
        shown.images.push_back("images/" + std::to_string(i) + ".png");
    }
    // One that only says that it is a picture breaks conversations.
    shown.displays.push_back({{"image/png", detail::encode_base64("no picture")}});
    ChatLimits limits;
    limits.images = 2;
    const auto answer = code_answer(call, shown, limits);
    BOOST_TEST(answer.images.size() == 2u);
    BOOST_TEST(answer.text == "plotted\n[1 of 3 images not shown; all are files in images]");

    const auto openai = chat_messages(ChatApi::openai, {answer, {"8", "b", {}, false}});
    BOOST_TEST_REQUIRE(openai.size() == 3u);
    BOOST_TEST(openai[0].at("tool_call_id") == "7");
    BOOST_TEST(openai[1].at("content") == "b");
    BOOST_TEST(openai[2].at("role") == "user");
    BOOST_TEST(openai[2].at("content").as_array().size() == 3u);
    BOOST_TEST(std::string_view(openai[2].at("content").at(1).at("image_url").at("url").as_string())
                   .starts_with("data:image/png;base64,iVBOR"));

    const auto anthropic = chat_messages(ChatApi::anthropic, {answer, {"8", "b", {}, true}});
    BOOST_TEST_REQUIRE(anthropic.size() == 1u);
    const auto& blocks = anthropic[0].at("content").as_array();
    BOOST_TEST_REQUIRE(blocks.size() == 2u);
    BOOST_TEST(blocks[0].at("tool_use_id") == "7");
    BOOST_TEST(blocks[0].at("content").at(0).at("text") == json::value(answer.text));
    BOOST_TEST(blocks[0].at("content").at(2).at("source").at("media_type") == "image/png");
    BOOST_TEST(blocks[1].at("is_error") == true);
    BOOST_TEST(chat_messages(ChatApi::openai, {}).empty());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace agent_tests
