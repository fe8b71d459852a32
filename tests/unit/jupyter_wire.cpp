#include <boost/test/unit_test.hpp>
#include <ipybox/jupyter/wire.hpp>
#include <random>
#include <set>

namespace jupyter_wire_tests {

using namespace ipybox::detail;
using namespace ipybox::jupyter;

namespace {
using Frames = std::vector<std::string>;

WireResult<WireMessage> read(const WireSession& session, const Frames& frames) {
    const std::vector<std::string_view> views(frames.begin(), frames.end());
    return session.read(views);
}

// What a kernel that holds the key could send.
Frames message(const WireSession& session, std::string header, std::string parent,
               std::string content, Frames before = {}, Frames after = {}) {
    Frames frames = std::move(before);
    frames.emplace_back(WireSession::delimiter);
    frames.push_back(session.sign({header, parent, "{}", content}));
    frames.push_back(std::move(header));
    frames.push_back(std::move(parent));
    frames.emplace_back("{}");
    frames.push_back(std::move(content));
    frames.insert(frames.end(), after.begin(), after.end());
    return frames;
}

constexpr const char* status = R"({"msg_type":"status","msg_id":"k1"})";

std::string nested(std::size_t depth) {
    return R"({"a":)" + std::string(depth, '[') + std::string(depth, ']') + "}";
}
}  // namespace

BOOST_AUTO_TEST_SUITE(jupyter_wire)

BOOST_AUTO_TEST_CASE(signature_is_hmac_sha256_over_the_parts_in_order) {
    const WireSession session("Jefe");  // RFC 4231, case 2
    BOOST_TEST(session.sign({"what do ya want ", "for", "", " nothing?"}) ==
               "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    BOOST_TEST(session.sign({"what do ya want for nothing?"}) ==
               "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

BOOST_AUTO_TEST_CASE(a_request_is_what_the_specification_asks_for) {
    WireSession session("key");
    json::object content;
    content["code"] = "print('\"ä\\n')";
    const auto request = session.request("execute_request", content);
    BOOST_TEST_REQUIRE(request.frames.size() == 6U);
    BOOST_TEST(request.frames[0] == "<IDS|MSG>");
    const auto header = read_object(request.frames[2], 8);
    BOOST_TEST_REQUIRE(header.has_value());
    for (const auto* name : {"msg_id", "msg_type", "username", "session", "date", "version"})
        BOOST_TEST(header->at(name).is_string(), name);
    BOOST_TEST(header->at("msg_id").as_string() == request.id);
    BOOST_TEST(header->at("version").as_string() == "5.3");
    const std::string date(header->at("date").as_string());
    BOOST_TEST(date.size() == std::string("2024-01-31T23:59:59.123456Z").size());
    BOOST_TEST(date[10] == 'T');
    BOOST_TEST(date.back() == 'Z');
    BOOST_TEST((*read_object(request.frames[5], 8) == content));
}

BOOST_AUTO_TEST_CASE(a_request_reads_back_with_the_same_key_only) {
    WireSession session("key");
    const auto request = session.request("kernel_info_request", {});
    const auto same = read(WireSession("key"), request.frames);
    BOOST_TEST_REQUIRE(same.has_value());
    BOOST_TEST(same->type == "kernel_info_request");
    BOOST_TEST(same->id == request.id);
    BOOST_TEST(same->parent_id.empty());
    BOOST_TEST((read(WireSession("other"), request.frames).error() == WireFault::bad_signature));
}

BOOST_AUTO_TEST_CASE(ids_never_repeat) {
    WireSession one("key"), two("key");
    std::set<std::string> ids, signatures;
    for (int i = 0; i < 1000; ++i) {
        for (auto* session : {&one, &two}) {
            const auto request = session->request("t", {});
            ids.insert(request.id);
            signatures.insert(request.frames[1]);
        }
    }
    BOOST_TEST(ids.size() == 2000U);
    BOOST_TEST(signatures.size() == 2000U);
}

BOOST_AUTO_TEST_CASE(identities_and_buffers_surround_a_message) {
    const WireSession session("key");
    const auto frames =
        message(session, status, R"({"msg_id":"p"})", R"({"execution_state":"idle"})",
                {"identity", "\0\x01"}, {"buffer", "<IDS|MSG>"});
    const auto read_back = read(session, frames);
    BOOST_TEST_REQUIRE(read_back.has_value());
    BOOST_TEST(read_back->type == "status");
    BOOST_TEST(read_back->id == "k1");
    BOOST_TEST(read_back->parent_id == "p");
    BOOST_TEST(read_back->content == R"({"execution_state":"idle"})");
    BOOST_TEST(read_back->buffers == 2U);
}

BOOST_AUTO_TEST_CASE(one_changed_byte_anywhere_is_noticed) {
    const WireSession session("key");
    const auto good = message(session, status, R"({"msg_id":"p"})", R"({"a":1})");
    for (std::size_t frame = 1; frame < good.size(); ++frame) {
        for (std::size_t at = 0; at < good[frame].size(); ++at) {
            auto bad = good;
            bad[frame][at] = static_cast<char>(bad[frame][at] ^ 1);
            BOOST_TEST((read(session, bad).error() == WireFault::bad_signature));
        }
    }
}

BOOST_AUTO_TEST_CASE(frames_that_are_missing_or_cut_are_refused) {
    const WireSession session("key");
    const auto good = message(session, status, "{}", R"({"a":1})", {"topic"});
    for (std::size_t count = 0; count < good.size(); ++count)
        BOOST_TEST(read(session, Frames(good.begin(), good.begin() + static_cast<long>(count)))
                       .has_error());
    for (std::size_t frame = 1; frame < good.size(); ++frame) {
        auto bad = good;
        bad[frame].pop_back();
        BOOST_TEST(read(session, bad).has_error());
        bad[frame].clear();
        BOOST_TEST(read(session, bad).has_error());
    }
    BOOST_TEST((read(session, {"a", "b", "c", "d", "e", "f"}).error() == WireFault::no_delimiter));
    BOOST_TEST((read(session, {"<IDS|MSG>", "s", "{}", "{}"}).error() == WireFault::frame_count));
}

BOOST_AUTO_TEST_CASE(counts_and_sizes_are_bounded) {
    WireLimits limits;
    limits.frames = 8;
    limits.bytes = 1000;
    const WireSession session("key", limits);
    const auto with = [&](Frames after) { return message(session, status, "{}", "{}", {}, after); };
    BOOST_TEST(read(session, with({"1", "2"})).has_value());
    BOOST_TEST((read(session, with({"1", "2", "3"})).error() == WireFault::frame_count));
    BOOST_TEST((read(session, with({std::string(1000, 'x')})).error() == WireFault::too_large));
    BOOST_TEST((read(session, with({std::string(500, 'x'), std::string(500, 'x')})).error() ==
                WireFault::too_large));
}

BOOST_AUTO_TEST_CASE(signed_nonsense_is_refused) {
    const WireSession session("key");
    const auto fault = [&](std::string header, std::string parent) {
        return read(session, message(session, std::move(header), std::move(parent), "{}")).error();
    };
    BOOST_TEST((fault("", "{}") == WireFault::bad_json));
    BOOST_TEST((fault("[]", "{}") == WireFault::bad_json));
    BOOST_TEST((fault("{} {}", "{}") == WireFault::bad_json));
    BOOST_TEST((fault(status, "null") == WireFault::bad_json));
    BOOST_TEST((fault("{}", "{}") == WireFault::bad_header));
    BOOST_TEST((fault(R"({"msg_type":"status"})", "{}") == WireFault::bad_header));
    BOOST_TEST((fault(R"({"msg_type":1,"msg_id":"a"})", "{}") == WireFault::bad_header));
    BOOST_TEST((fault(R"({"msg_type":"","msg_id":"a"})", "{}") == WireFault::bad_header));
    BOOST_TEST((fault(status, R"({"msg_id":[]})") == WireFault::bad_header));
    BOOST_TEST((fault(nested(1'000), "{}") == WireFault::bad_json));
    BOOST_TEST((fault(status, nested(1'000)) == WireFault::bad_json));
    // More than a header may have.
    BOOST_TEST((fault(nested(200'000), "{}") == WireFault::bad_header));
    BOOST_TEST((fault(status, nested(200'000)) == WireFault::bad_header));
}

BOOST_AUTO_TEST_CASE(depth_is_bounded) {
    BOOST_TEST(read_object(nested(127), 128).has_value());
    BOOST_TEST((read_object(nested(128), 128).error() == WireFault::bad_json));
    BOOST_TEST((read_object(nested(100'000), 128).error() == WireFault::bad_json));
    BOOST_TEST((read_object(nested(1'000'000), 128).error() == WireFault::too_costly));
}

BOOST_AUTO_TEST_CASE(text_that_is_no_unicode_is_repaired_not_refused) {
    const auto object = read_object(
        "{\"text\":\"a\xFF"
        "b\"}",
        8);
    BOOST_TEST_REQUIRE(object.has_value());
    BOOST_TEST(object->at("text").as_string() ==
               "a\xEF\xBF\xBD"
               "b");
    BOOST_TEST((read_object("{\"text\":\"\xFF", 8).error() == WireFault::bad_json));

    const auto bad = std::string("\xEF\xBF\xBD");
    BOOST_TEST(repair_utf8("") == "");
    BOOST_TEST(repair_utf8("a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80z") ==
               "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80z");
    BOOST_TEST(repair_utf8("\xC0\xAF") == bad + bad);            // overlong
    BOOST_TEST(repair_utf8("\xE0\x80\xAF") == bad + bad + bad);  // overlong
    BOOST_TEST(repair_utf8("\xED\xA0\x80") == bad);              // half a surrogate pair
    BOOST_TEST(repair_utf8("\xF4\x90\x80\x80") == bad + bad + bad + bad);
    BOOST_TEST(repair_utf8("\xF0\x9F\x98") == bad + bad + bad);  // cut off
    BOOST_TEST(repair_utf8("\xC3"
                           "a") == bad + "a");
    // Wherever it lies between what is ASCII.
    for (std::size_t before = 0; before < 20; ++before)
        for (std::size_t after = 0; after < 20; ++after) {
            const std::string head(before, 'a'), tail(after, 'z');
            BOOST_TEST(repair_utf8(head + "\xFF" + tail) == head + bad + tail);
            BOOST_TEST(repair_utf8(head + "\xC3\xA4" + tail) == head + "\xC3\xA4" + tail);
        }
}

BOOST_AUTO_TEST_CASE(arbitrary_frames_do_no_harm) {
    const WireSession session("key");
    std::mt19937 random(1);
    const auto good = message(session, status, R"({"msg_id":"p"})", R"({"a":1})", {"topic"}, {"b"});
    for (int round = 0; round < 20'000; ++round) {
        auto frames = good;
        for (unsigned i = random() % 4 + 1; i > 0; --i) {
            auto& frame = frames[random() % frames.size()];
            switch (random() % 4) {
                case 0:
                    frame.resize(random() % 64);
                    break;
                case 1:
                    frame.insert(0, 1, static_cast<char>(random()));
                    break;
                case 2:
                    frames.erase(frames.begin() + static_cast<long>(random() % frames.size()));
                    break;
                default:
                    std::swap(frame, frames[random() % frames.size()]);
            }
            if (frames.empty()) break;
        }
        // Only a change of what the signature does not cover leaves a message good.
        const auto result = read(session, frames);
        if (result.has_value()) BOOST_TEST(result->type == "status");
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace jupyter_wire_tests
