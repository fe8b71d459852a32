#include <sys/stat.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <ipybox/approval/approval.hpp>
#include <ipybox/registry.hpp>

#include "test_support.hpp"

namespace registry_tests {

using namespace ipybox;
namespace {

std::filesystem::path sample_directory() {
    return test::required_environment("IPYBOX_TEST_BAD_PLUGINS");
}
std::filesystem::path sample(const std::string& name) {
    return sample_directory() / (name + ".so");
}

struct RegistryFixture {
    asio::io_context context;
    Host host{context.get_executor(), {}, {}};
    PluginRegistry registry;

    std::string refusal(auto action, errc expected) {
        try {
            action();
        } catch (const Error& error) {
            BOOST_TEST((error.code() == expected), error.what());
            return error.what();
        }
        BOOST_ERROR("nothing was thrown");
        return {};
    }
    std::string load_refusal(const std::filesystem::path& file) {
        const std::string text = refusal([&] { registry.load(file); }, errc::bad_plugin);
        BOOST_TEST(text.find(file.string()) != text.npos, text << " does not name the file");
        return text;
    }
    std::string make_refusal(const json::object& config) {
        return refusal([&] { registry.make<ApprovalPolicy>("sample", host, config); },
                       errc::bad_config);
    }
};

// What a process of its own prints of the plugin, which ends with 0.
std::string printed_by(const char* program, const char* option,
                       const std::filesystem::path& plugin) {
    const std::string command = "'" + (sample_directory() / program).string() + "' " + option +
                                " '" + plugin.string() + "'";
    std::FILE* output = ::popen(command.c_str(), "r");
    BOOST_REQUIRE(output != nullptr);
    std::string text(4096, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), output));
    BOOST_TEST(::pclose(output) == 0, program << ' ' << plugin);
    return text;
}
std::string refusal_in(const char* program, const std::filesystem::path& plugin) {
    return printed_by(program, "", plugin);
}

bool holds(const std::string& text, std::string_view part) {
    if (text.find(part) != text.npos) return true;
    BOOST_TEST_MESSAGE("\"" << part << "\" is not in: " << text);
    return false;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(registry, RegistryFixture)

BOOST_AUTO_TEST_CASE(a_plugin_shares_the_statics_of_asio) {
    BOOST_TEST(printed_by("load_plugin", "--statics", sample("sample")) == "shared\n");
    // What would come of a program that does not export its symbols, were it not refused.
    BOOST_TEST(printed_by("load_plugin_unexported", "--statics", sample("sample")) == "apart\n");
}

BOOST_AUTO_TEST_CASE(a_shared_object_becomes_an_object) {
    registry.load(sample("sample"));
    auto policy = registry.make<ApprovalPolicy>("sample", host, {{"level", 1}});
    const Decision decision = test::run(context, approve(*policy, ToolCall{}, Duration::zero()));
    BOOST_TEST((decision.verdict == Verdict::allow));
    BOOST_TEST(decision.reason == "sample");
}

BOOST_AUTO_TEST_CASE(another_api_version_is_refused) {
    const std::string text = load_refusal(sample("wrong_version"));
    BOOST_TEST(holds(text, "no plugin of ipybox API " IPYBOX_STRING(IPYBOX_API_VERSION)));
    BOOST_TEST(holds(text, "built for API 0; rebuild it against the headers of this ipybox"));
}

BOOST_AUTO_TEST_CASE(a_forgotten_line_is_named) {
    BOOST_TEST(holds(load_refusal(sample("no_plugin")), "lacks the line IPYBOX_PLUGIN("));
}

BOOST_AUTO_TEST_CASE(another_declaration_is_refused_and_another_comment_is_not) {
    const std::string text = load_refusal(sample("changed_field"));
    BOOST_TEST(holds(text, std::string("this program is [") + abi_tag + "]"));
    BOOST_TEST(holds(text, "built for [ipybox " IPYBOX_STRING(IPYBOX_API_VERSION) " "));
    BOOST_TEST(holds(text, "rebuild it against"));
    BOOST_TEST(text.find('\n') == text.npos);
    registry.load(sample("changed_comment"));
    auto policy = registry.make<ApprovalPolicy>("changed_comment", host, {{"level", 1}});
    const Decision decision = test::run(context, approve(*policy, ToolCall{}, Duration::zero()));
    BOOST_TEST(decision.reason == "sample");
}

BOOST_AUTO_TEST_CASE(a_symbol_of_the_plugins_own_is_its_own_matter) {
    const std::string text = load_refusal(sample("undefined"));
    BOOST_TEST(holds(text, "undefined symbol: _Z15defined_nowherev"));
    BOOST_TEST(holds(text, "link the plugin with what defines it"));
}

BOOST_AUTO_TEST_CASE(a_schema_that_is_none_is_refused_when_loaded) {
    const std::string text = load_refusal(sample("bad_schema"));
    BOOST_TEST(holds(text, "approval bad_schema: its config_schema is no JSON"));
    const auto add = [&](const char* schema) {
        registry.add<ApprovalPolicy>(
            "own", [](Host&, const json::object&) -> PolicyPtr { return nullptr; }, schema);
    };
    for (const char* schema : {"[]", R"({"properties": {"a": {"type": 5}}})",
                               R"({"required": "a"})", R"({"properties": {"a": 1}})"})
        BOOST_TEST(
            holds(refusal([&] { add(schema); }, errc::bad_plugin), "own: its config_schema"));
}

BOOST_AUTO_TEST_CASE(what_a_factory_does_wrong_is_one_error) {
    for (const auto& [name, what] : {std::pair("null", "its factory returned null"),
                                     std::pair("throwing", "its factory failed: no such level")}) {
        registry.load(sample(name));
        const auto make = [&] { registry.make<ApprovalPolicy>(name, host, {}); };
        const std::string text = refusal(make, errc::bad_plugin);
        BOOST_TEST(holds(text, what));
        BOOST_TEST(holds(text, std::string("approval ") + name + " ("));
        BOOST_TEST(holds(text, sample(name).string()));
    }
    registry.add<ApprovalPolicy>("odd", [](Host&, const json::object&) -> PolicyPtr { throw 1; });
    registry.add<ApprovalPolicy>("picky", [](Host&, const json::object&) -> PolicyPtr {
        throw Error(errc::missing_dependency, "install it");
    });
    const auto make = [&](const char* name) {
        return [&, name] { registry.make<ApprovalPolicy>(name, host, {}); };
    };
    BOOST_TEST(holds(refusal(make("odd"), errc::bad_plugin), "threw what is no exception"));
    BOOST_TEST(holds(refusal(make("picky"), errc::missing_dependency), "approval picky ("));
}

BOOST_AUTO_TEST_CASE(a_callable_with_state_is_a_plugin) {
    int made = 0;
    registry.load(sample("sample"));
    registry.add<ApprovalPolicy>(
        "counting",
        [&made](Host& lent, const json::object& config) -> PolicyPtr {
            ++made;
            return lent.plugins->approval("sample", lent, config);  // which it wraps
        },
        R"({"type": "object", "required": ["level"]})", "counts");
    PluginRegistry moved = std::move(registry);
    auto policy = moved.make<ApprovalPolicy>("counting", host, {{"level", 1}});
    const Decision decision = test::run(context, approve(*policy, ToolCall{}, Duration::zero()));
    BOOST_TEST(decision.reason == "sample");
    BOOST_TEST(made == 1);
    refusal([&] { moved.make<ApprovalPolicy>("counting", host, {}); }, errc::bad_config);
    BOOST_TEST(moved.list().size() == 2u);
    moved.add<ApprovalPolicy>("endless", [](Host& lent, const json::object& config) {
        return lent.plugins->approval("endless", lent, config);
    });
    const auto endless = [&] { moved.make<ApprovalPolicy>("endless", host, {}); };
    BOOST_TEST(holds(refusal(endless, errc::bad_config), "more than 16 deep"));
}

BOOST_AUTO_TEST_CASE(a_foreign_directory_beside_the_program_hides_nothing) {
    test::TemporaryDirectory directory;
    const auto beside = directory.path() / "plugins", installed = directory.path() / "installed";
    for (const auto& place : {beside, installed})
        std::filesystem::create_directories(place / "approval");
    std::filesystem::copy_file(sample("no_plugin"), beside / "reverb.so");
    test::write_file(beside / "text.so", "of another program\n");
    std::filesystem::copy_file(sample("sample"), installed / "approval" / "sample.so");
    registry.add_standard(beside, installed);
    BOOST_TEST(registry.list().size() == 1u);
    BOOST_TEST(registry.make<ApprovalPolicy>("sample", host, {{"level", 1}}).get() != nullptr);
    // In a build tree, what is built goes before what is installed.
    std::filesystem::copy_file(sample("sample"), beside / "approval" / "sample.so");
    PluginRegistry built;
    built.add_standard(beside, installed);
    BOOST_REQUIRE(built.list().size() == 1u);
    BOOST_TEST(built.list().front().file == beside / "approval" / "sample.so");
}

BOOST_AUTO_TEST_CASE(another_boost_or_compiler_is_refused) {
    const std::string text = load_refusal(sample("other_boost"));
    BOOST_TEST(holds(text, "Boost 1_74, another compiler"));
    BOOST_TEST(holds(text, abi_tag));
}

BOOST_AUTO_TEST_CASE(hidden_symbols_are_refused) {
    BOOST_TEST(holds(load_refusal(sample("hidden")), "hidden visibility"));
}

// The loader makes one object of this symbol as soon as one other plugin is loaded.
BOOST_AUTO_TEST_CASE(a_plugin_bound_to_itself_is_refused) {
    BOOST_TEST(holds(refusal_in("load_plugin", sample("symbolic")), "-Bsymbolic"));
}

BOOST_AUTO_TEST_CASE(a_program_without_export_dynamic_is_told_the_flag) {
    for (const char* name : {"sample", "without_json"}) {
        const std::string text = refusal_in("load_plugin_unexported", sample(name));
        BOOST_TEST(holds(text, "link the program with -Wl,--export-dynamic"));
    }
}

BOOST_AUTO_TEST_CASE(a_name_taken_twice_names_both_files) {
    registry.load(sample("sample"));
    const std::string text = load_refusal(sample("sample_again"));
    BOOST_TEST(holds(text, "approval \"sample\""));
    BOOST_TEST(holds(text, sample("sample").string() + " and "));
}

BOOST_AUTO_TEST_CASE(the_same_file_twice_is_no_duplicate) {
    registry.load(sample("sample"));
    registry.load(sample("sample"));
    BOOST_TEST(registry.list().size() == 1u);
}

BOOST_AUTO_TEST_CASE(what_is_no_plugin_is_refused) {
    test::TemporaryDirectory directory;
    load_refusal(sample("no_plugin"));
    load_refusal(directory.path() / "absent.so");
    load_refusal(directory.path());
    const auto text_file = directory.path() / "text.so";
    test::write_file(text_file, "a few words\n");
    load_refusal(text_file);
    const auto empty_file = directory.path() / "empty.so";
    test::write_file(empty_file, "");
    load_refusal(empty_file);
    const auto half_file = directory.path() / "half.so";
    test::write_file(half_file, test::read_file(sample("sample")).substr(0, 200));
    load_refusal(half_file);
}

BOOST_AUTO_TEST_CASE(only_regular_files_are_opened) {
    test::TemporaryDirectory directory;
    const auto fifo = directory.path() / "fifo.so", socket = directory.path() / "socket.so";
    BOOST_REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    asio::local::stream_protocol::acceptor acceptor(context, socket.string());
    const auto device = directory.path() / "device.so", to_fifo = directory.path() / "to_fifo.so";
    std::filesystem::create_symlink("/dev/zero", device);
    std::filesystem::create_symlink(fifo, to_fifo);
    for (const auto& file : {fifo, socket, device, to_fifo})
        BOOST_TEST(holds(load_refusal(file), "not a regular file"));
    // Links to plugins are plugins, and what is in their way is told.
    std::filesystem::create_symlink(sample("sample"), directory.path() / "sample.so");
    registry.add_directory(directory.path());
    std::size_t refused = 0;
    BOOST_TEST(registry.list([&](const auto&, const auto&) { ++refused; }).size() == 1u);
    BOOST_TEST(refused == 4u);
    refusal([&] { registry.make<ApprovalPolicy>("fifo", host, {}); }, errc::bad_plugin);
}

BOOST_AUTO_TEST_CASE(an_unknown_name_lists_those_that_exist) {
    registry.load(sample("sample"));
    const auto make = [&] { registry.make<ApprovalPolicy>("sampel", host, {}); };
    const std::string text = refusal(make, errc::no_such_plugin);
    BOOST_TEST(holds(text, "\"sampel\""));
    BOOST_TEST(holds(text, "there are: sample"));
    BOOST_TEST(holds(text, "searched: the program alone"));
    test::TemporaryDirectory directory;
    std::filesystem::copy_file(sample("other_boost"), directory.path() / "broken.so");
    registry.add_directory(directory.path());
    const std::string searched = refusal(make, errc::no_such_plugin);
    BOOST_TEST(holds(searched, "searched: " + directory.path().string() + "; --plugin-dir"));
    BOOST_TEST(holds(searched, "broken.so: built for ["));
}

BOOST_AUTO_TEST_CASE(a_name_of_another_kind_is_unknown) {
    registry.load(sample("sample"));
    const auto make = [&] { registry.make<Sandbox>("sample", host, {}); };
    BOOST_TEST(holds(refusal(make, errc::no_such_plugin), "there are: none"));
}

BOOST_AUTO_TEST_CASE(a_configuration_that_does_not_fit_names_the_field) {
    registry.load(sample("sample"));
    BOOST_TEST(holds(make_refusal({}), "level"));
    BOOST_TEST(holds(make_refusal({{"level", "high"}}), "level"));
    BOOST_TEST(holds(make_refusal({{"level", 0}}), "level"));
    BOOST_TEST(holds(make_refusal({{"level", 1}, {"colour", "red"}}), "colour"));
}

BOOST_AUTO_TEST_CASE(directories_are_searched_by_kind_and_name) {
    test::TemporaryDirectory directory;
    std::filesystem::create_directories(directory.path() / "approval");
    const auto file = directory.path() / "approval" / "sample.so";
    std::filesystem::copy_file(sample("sample"), file);
    std::filesystem::copy_file(sample("other_boost"), directory.path() / "broken.so");
    registry.add_directory(directory.path());
    registry.add_directory(directory.path() / "approval" / "..");  // which is the same
    BOOST_TEST(registry.make<ApprovalPolicy>("sample", host, {{"level", 1}}).get() != nullptr);
    std::vector<std::filesystem::path> broken;
    const auto all = registry.list([&](const auto& at, const auto&) { broken.push_back(at); });
    BOOST_REQUIRE(all.size() == 1u);
    BOOST_TEST(all.front().file == file);
    BOOST_TEST(all.front().plugin->name == "sample");
    BOOST_REQUIRE(broken.size() == 1u);
    BOOST_TEST(broken.front() == directory.path() / "broken.so");
}

BOOST_AUTO_TEST_CASE(two_files_of_one_name_in_the_search_path_are_refused) {
    test::TemporaryDirectory directory;
    for (const char* folder : {"first", "second"}) {
        std::filesystem::create_directories(directory.path() / folder / "approval");
        std::filesystem::copy_file(sample("sample"),
                                   directory.path() / folder / "approval" / "sample.so");
        registry.add_directory(directory.path() / folder);
    }
    const auto make = [&] { registry.make<ApprovalPolicy>("sample", host, {{"level", 1}}); };
    const std::string text = refusal(make, errc::bad_plugin);
    BOOST_TEST(holds(text, (directory.path() / "first").string()));
    BOOST_TEST(holds(text, (directory.path() / "second").string()));
}

BOOST_AUTO_TEST_CASE(a_directory_that_is_none_is_refused) {
    const auto add = [&] { registry.add_directory(sample("sample")); };
    refusal(add, errc::bad_plugin);
}

BOOST_AUTO_TEST_CASE(a_name_cannot_leave_the_directories) {
    registry.add_directory(sample_directory());
    const auto make = [&] {
        registry.make<ApprovalPolicy>("../bad_plugins/sample", host, {{"level", 1}});
    };
    refusal(make, errc::no_such_plugin);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace registry_tests
