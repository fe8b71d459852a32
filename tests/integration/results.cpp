// What a result keeps apart, what comes as it happens, and what of both code can forge.
#include <sys/resource.h>

#include <algorithm>
#include <ipybox/detail/utf8.hpp>
#include <ipybox/executor/blocking.hpp>
#include <map>
#include <set>

#include "executor_fixture.hpp"

using namespace ipybox;
using namespace std::chrono_literals;
namespace data = boost::unit_test::data;

namespace results_tests {

using Status = CodeExecutionResult::Status;
using Change = CodeExecutionFile::Change;

namespace {
// Sends what a kernel may say, past everything that bounds it there.
const std::string forge =
    "def forge(kind, **content):\n"
    "    kernel = getattr(get_ipython(), 'kernel', None)\n"
    "    if kernel is None:\n"
    "        from ipybox_kernel.frames import TAPE\n"
    "        update = kind.startswith('update')\n"
    "        return TAPE.send('x' if kind == 'error' else 'd', {**content, 'update': update})\n"
    "    kernel.session.send(kernel.iopub_socket, kind, content, parent=kernel.get_parent())\n";

struct Fixture : test::ExecutorFixture {
    CodeExecutionResult execute(std::string code, ExecutionOptions how) {
        return test::run(context, executor->execute_approved(std::move(code), how));
    }
    using ExecutorFixture::execute;

    struct Shown {
        std::string chunks;
        std::vector<CodeExecutionDisplay> displays;
        CodeExecutionResult result;
    };
    Shown show(std::string code, bool chunks = true) {
        ExecutionOptions how;
        how.timeout = 60s;
        how.chunks = chunks;
        how.displays = true;
        return test::run(context, collect(std::move(code), how));
    }

    std::map<std::string, CodeVariable> variables() {
        std::map<std::string, CodeVariable> found;
        for (auto& one : test::run(context, executor->variables())) found[one.name] = one;
        return found;
    }
    errc refusal() {
        try {
            test::run(context, executor->variables());
        } catch (const Error& error) {
            return static_cast<errc>(error.code().value());
        }
        return {};
    }

private:
    awaitable<Shown> collect(std::string code, ExecutionOptions how) {
        Shown seen;
        auto execution = co_await executor->stream(std::move(code), how);
        for (;;) {
            auto event = co_await execution.next();
            if (!event) break;
            if (auto* chunk = std::get_if<CodeExecutionChunk>(&*event))
                seen.chunks += chunk->text;
            else if (auto* display = std::get_if<CodeExecutionDisplay>(&*event))
                seen.displays.push_back(std::move(*display));
            else if (auto* result = std::get_if<CodeExecutionResult>(&*event))
                seen.result = std::move(*result);
        }
        co_return seen;
    }
};

std::map<std::string, Change> files_of(const CodeExecutionResult& result) {
    std::map<std::string, Change> found;
    for (const auto& file : result.measures.value().files) found[file.path.string()] = file.change;
    return found;
}
}  // namespace

BOOST_FIXTURE_TEST_SUITE(results, Fixture)

BOOST_DATA_TEST_CASE_F(Fixture, what_the_cell_kept_apart_stays_apart, data::make(test::sandboxes),
                       sandbox) {
    start(sandbox);
    const auto result = execute(
        "import sys\nprint('  out')\nprint('err', file=sys.stderr)\ndisplay('shown')\n"
        "print('more')\n{'a': 1}");
    BOOST_TEST_REQUIRE(result.ok(), result.error);
    BOOST_TEST(result.text.value() == "out\nerr\n'shown'\nmore\n{'a': 1}");
    BOOST_TEST(result.stdout_text() == "  out\nmore\n");
    BOOST_TEST(result.stderr_text() == "err\n");
    BOOST_TEST(result.value_repr().value() == "{'a': 1}");
    BOOST_TEST(result.displays.size() == 2U);
    BOOST_TEST(result.error_name.empty());
    BOOST_TEST(result.duration.count() > 0);
    BOOST_TEST(!result.measures.has_value());

    const auto failed = execute("print('before')\nraise ValueError('wrong: äöü')");
    BOOST_TEST(failed.error_name == "ValueError");
    BOOST_TEST(failed.error_value == "wrong: äöü");
    BOOST_TEST(failed.stdout_text() == "before\n");
    BOOST_TEST(!failed.value_repr().has_value());
    BOOST_TEST(!execute("x = 1").value_repr().has_value());
    BOOST_TEST(execute("%%bash\nsleep 60", 300ms).status == Status::timed_out);
}

BOOST_DATA_TEST_CASE_F(Fixture, displays_come_as_they_are_shown, data::make(test::sandboxes),
                       sandbox) {
    start(sandbox);
    const std::string code =
        "from IPython.display import HTML\nprint('first')\n"
        "shown = display({'text/plain': 'one', 'text/x': '1'}, raw=True, display_id='mine', "
        "metadata={'k': 'v'})\n"
        "display('between')\n"
        "shown.update({'text/plain': 'two', 'text/x': '2'}, raw=True)\n'value'";
    const auto seen = show(code);
    BOOST_TEST_REQUIRE(seen.result.ok(), seen.result.error);
    BOOST_TEST(seen.chunks == "first\n");
    BOOST_TEST_REQUIRE(seen.displays.size() == 4U);
    const auto& [one, between, two, value] =
        std::tie(seen.displays[0], seen.displays[1], seen.displays[2], seen.displays[3]);
    BOOST_TEST(one.display_id == "mine");
    BOOST_TEST(!one.is_update);
    BOOST_TEST(!one.is_result);
    BOOST_TEST(one.data.at("text/x").as_string() == "1");
    BOOST_TEST(one.metadata.at("k").as_string() == "v");
    BOOST_TEST(between.display_id.empty());
    BOOST_TEST(two.is_update);
    BOOST_TEST(two.display_id == "mine");
    BOOST_TEST(value.is_result);
    // The result has the latest of each, where the first one was.
    BOOST_TEST_REQUIRE(seen.result.displays.size() == 3U);
    BOOST_TEST(seen.result.displays[0].at("text/x").as_string() == "2");
    BOOST_TEST(seen.result.value_repr().value() == "'value'");
    BOOST_TEST(seen.result.text.value() == "first\none\n'between'\ntwo\n'value'");
    // Of a display of another cell there is nothing else yet.
    const auto later = show("shown.update('three')", false);
    BOOST_TEST(later.displays.at(0).is_update);
    BOOST_TEST(later.result.displays.size() == 1U);
    // Without the option they come as before.
    BOOST_TEST(stream(code, test::accept).chunks == "first\none\n'between'\ntwo\n'value'\n");
}

BOOST_AUTO_TEST_CASE(events_wait_in_the_kernel) {
    start("none");
    const auto resident = [] {
        const auto status = test::read_file("/proc/self/status");
        return std::stoul(status.substr(status.find("VmRSS:") + 6)) * 1024;
    };
    const auto work = [&]() -> awaitable<std::pair<std::size_t, std::size_t>> {
        ExecutionOptions how;
        how.displays = true;
        std::string code =
            "for i in range(300): display({'application/x': str(i) * 300_000}, raw=True)";
        auto execution = co_await executor->stream(std::move(code), how);
        // However long the reader takes.
        asio::steady_timer timer(context, 2s);
        co_await timer.async_wait(asio::use_awaitable);
        const auto waiting = resident();
        std::size_t count = 0;
        for (;;) {
            auto event = co_await execution.next();
            if (!event) break;
            if (std::holds_alternative<CodeExecutionDisplay>(*event)) ++count;
        }
        co_return std::pair(waiting, count);
    };
    const auto before = resident();
    const auto [waiting, count] = test::run(context, work());
    BOOST_TEST(count == 300U);
    BOOST_TEST(waiting < before + (100u << 20));
}

BOOST_AUTO_TEST_CASE(silent_code_leaves_no_trace) {
    start("none");
    ExecutionOptions how;
    how.silent = true;
    const auto result = execute("print('printed')\nkept = 5\nkept", how);
    BOOST_TEST_REQUIRE(result.ok(), result.error);
    BOOST_TEST(result.text.value() == "printed");
    BOOST_TEST(!result.value_repr().has_value());
    BOOST_TEST(text("kept") == "5");
    BOOST_TEST(text("print(_)") == "5");
    BOOST_TEST(execute("1/0", how).error_name == "ZeroDivisionError");
}

BOOST_DATA_TEST_CASE_F(Fixture, files_and_memory_are_measured, data::make(test::sandboxes),
                       sandbox) {
    start(sandbox);
    text("import os\nos.makedirs('a/b')\nfor n in 'a/b/old', 'changed': open(n, 'w').write('1')");
    ExecutionOptions how;
    how.measure = true;
    const auto result = execute(
        "open('a/new', 'w').write('2'); open('changed', 'w').write('22'); os.remove('a/b/old')\n"
        "from IPython.display import Image\nimport base64\n"
        "display(Image(data=base64.b64decode('iVBORw0KGgo='), format='png'))\n"
        "taken = bytearray(200_000_000)",
        how);
    BOOST_TEST_REQUIRE(result.ok(), result.error);
    BOOST_TEST_REQUIRE(result.measures.has_value());
    BOOST_TEST(result.measures->files_complete);
    BOOST_TEST(result.images.size() == 1U);
    if (test::distant()) {
        BOOST_TEST(result.measures->files.empty());
        BOOST_TEST(!result.measures->peak_memory.has_value());
        return;
    }
    const std::map<std::string, Change> expected{
        {"a/b/old", Change::removed}, {"a/new", Change::created}, {"changed", Change::changed}};
    BOOST_TEST((files_of(result) == expected));
    BOOST_TEST(result.measures->peak_memory.value() > 200'000'000U);
    BOOST_TEST(execute("1", how).measures->files.empty());

    const auto many = execute("for i in range(1500): open(f'a/{i}', 'w').close()", how);
    BOOST_TEST(many.measures->files.size() == CodeExecutionMeasures::max_files);
    BOOST_TEST(!many.measures->files_complete);
}

BOOST_AUTO_TEST_CASE(a_measured_cell_that_is_lost_has_its_files) {
    options.interrupt_grace = 1s;
    start("none");
    ExecutionOptions how;
    how.measure = true;
    const auto died = execute("import os\nopen('last', 'w').close()\nos._exit(3)", how);
    BOOST_TEST(died.status == Status::kernel_lost);
    BOOST_TEST(files_of(died).contains("last"));
    test::run(context, executor->reset());
    how.timeout = 300ms;
    const auto stopped = execute("open('kept', 'w').close()\nimport time\ntime.sleep(60)", how);
    BOOST_TEST(stopped.status == Status::timed_out);
    BOOST_TEST(stopped.error_name == "KeyboardInterrupt");
    BOOST_TEST(files_of(stopped).contains("kept"));
    BOOST_TEST(text("1 + 1") == "2");
}

BOOST_DATA_TEST_CASE_F(Fixture, variables_are_told_without_running_their_code,
                       data::make(test::sandboxes), sandbox) {
    start(sandbox);
    text(
        "import math\nnumber, words = 5, ['a'] * 1000\n"
        "class Loud:\n"
        "    def __repr__(self): open('ran', 'w'); return 'loud'\n"
        "    __len__ = __str__ = __repr__\n"
        "loud, _hidden = Loud(), 1\n"
        "import numpy\narray = numpy.zeros(1000)");
    auto found = variables();
    BOOST_TEST(found.at("number").type == "int");
    BOOST_TEST(found.at("number").repr == "5");
    BOOST_TEST(!found.at("number").size.has_value());
    BOOST_TEST(found.at("words").size.value() == 1000U);
    BOOST_TEST(found.at("words").repr.size() < 300U);
    BOOST_TEST(found.at("loud").type == "__main__.Loud");
    BOOST_TEST(found.at("loud").repr == "<__main__.Loud>");
    BOOST_TEST(found.at("math").type == "module");
    BOOST_TEST(found.at("array").size.value() == 8000U);
    BOOST_TEST(!found.contains("_hidden"));
    BOOST_TEST(!found.contains("get_ipython"));
    BOOST_TEST(!found.contains("In"));
    BOOST_TEST(!std::filesystem::exists(workspace.path() / "ran"));
    // It was no execution: neither a value nor a call came of it.
    BOOST_TEST(text("print(number)") == "5");
}

BOOST_AUTO_TEST_CASE(variables_wait_for_no_cell) {
    start("none");
    const auto work = [&]() -> awaitable<errc> {
        auto running = co_await executor->stream("import time; time.sleep(60)", 60s);
        errc seen{};
        try {
            co_await executor->variables();
        } catch (const Error& error) {
            seen = static_cast<errc>(error.code().value());
        }
        co_return seen;
    };
    BOOST_TEST((test::run(context, work()) == errc::busy));
    BOOST_TEST(text("1") == "1");
}

BOOST_AUTO_TEST_CASE(what_threads_print_while_variables_are_asked_for_is_not_lost) {
    start("none");
    auto printed = text(
        "import threading, time\n"
        "def work():\n"
        "    for i in range(100): print(i, flush=True); time.sleep(0.01)\n"
        "thread = threading.Thread(target=work); thread.start()");
    for (int i = 0; i < 5; ++i) BOOST_TEST(variables().contains("thread"));
    printed += '\n' + text("thread.join()");
    std::istringstream lines(printed);
    std::set<int> seen;
    for (int line = 0; lines >> line;) seen.insert(line);
    BOOST_TEST(seen.size() == 100U);
}

BOOST_AUTO_TEST_CASE(forged_variables_are_bounded) {
    start("none");
    const std::string replaced = "import ipybox_kernel.variables as v\n";
    text(replaced +
         "v.variables = lambda *_: [['é' * 10_000, 5, -1, None], 7, ['x', 'y', 2**63, "
         "'z' * 10_000]] + [['n', 't', 0.5, 'r']] * 5000");
    const auto found = test::run(context, executor->variables());
    BOOST_TEST_REQUIRE(found.size() == 1000U);
    BOOST_TEST(found[0].name.size() == 1024U);
    BOOST_TEST(found[0].type.empty());
    BOOST_TEST(!found[0].size.has_value());
    BOOST_TEST(found[1].size.value() == std::uint64_t{1} << 63);
    BOOST_TEST(found[1].repr.size() == 1024U);
    BOOST_TEST(!found[2].size.has_value());
    text(replaced + "v.tell = lambda: None");
    BOOST_TEST((refusal() == errc::kernel_protocol));
    text(replaced + "v.tell = lambda: 1 / 0");
    BOOST_TEST((refusal() == errc::kernel_protocol));
    text(replaced + "def flood():\n    while True: print('x' * 100_000)\nv.tell = flood");
    BOOST_TEST((refusal() == errc::output_limit));
    BOOST_TEST(text("print('usable')").ends_with("usable"));
}

BOOST_DATA_TEST_CASE_F(Fixture, code_is_completed_without_running_any, data::make(test::sandboxes),
                       sandbox) {
    start(sandbox);
    text(
        "class Loud:\n"
        "    def __getattr__(self, name): open('ran', 'w')\n"
        "    __dir__ = prop = property(__getattr__)\n"
        "loud, number_of_words = Loud(), 5");
    const auto found = [&](const std::string& code) {
        return test::run(context, executor->complete(code));
    };
    const auto names = found("é = number_of");
    BOOST_TEST(names.matches == std::vector<std::string>{"number_of_words"});
    BOOST_TEST(names.start == std::string("é = ").size());
    BOOST_TEST(found("loud.pro").matches == std::vector<std::string>{"prop"});
    BOOST_TEST(found("loud.prop.").matches.empty());
    BOOST_TEST(found("").matches.empty());
    BOOST_TEST(found("no \xFF\xFE utf8.").matches.empty());
    // Only the end of it is looked at.
    BOOST_TEST(found(std::string(1u << 20, '\n') + "number_of").matches.size() == 1U);
    BOOST_TEST(!std::filesystem::exists(workspace.path() / "ran"));
}

BOOST_AUTO_TEST_CASE(forged_completions_only_go_on) {
    start("none");
    const auto forge = [&](const std::string& answer) {
        text("import ipybox_kernel.completion as c\nc.complete = lambda *_: " + answer);
        return test::run(context, executor->complete("abc"));
    };
    BOOST_TEST(forge("('bc', ['bcd', 'bcd', 'bc', 'xyz', 'bc\\n', 'bc\\x1b[2J', 7, 'bc' * 5000])")
                   .matches == std::vector<std::string>{"bcd"});
    BOOST_TEST(forge("('x', ['xyz'])").matches.empty());
    BOOST_TEST(forge("(5, ['abcd'])").start == 3U);
    BOOST_TEST(forge("('abc', {'abcd': 1})").matches.empty());
    BOOST_TEST(forge("('', [str(i) for i in range(10000)])").matches.size() ==
               CodeCompletions::max_matches);
    BOOST_CHECK_THROW(forge("1 / 0"), Error);
    const auto begun = Clock::now();
    BOOST_CHECK_THROW(forge("__import__('time').sleep(60)"), Error);
    BOOST_TEST((Clock::now() - begun < 30s));
    BOOST_TEST(text("'usable'") == "'usable'");
}

BOOST_AUTO_TEST_CASE(a_flood_of_updates_ends_at_the_limit) {
    options.max_output = 1 << 20;
    options.interrupt_grace = 60s;
    start("none");
    const auto flood = show(
        "shown = display('x', display_id='mine')\n"
        "while True: shown.update({'application/x': 'y' * 10_000}, raw=True)");
    BOOST_TEST(flood.result.status == Status::output_limit, flood.result.error);
    BOOST_TEST(flood.result.displays.size() == 1U);
    BOOST_TEST(flood.displays.size() > 10U);
    BOOST_TEST(flood.displays.size() < 200U);
    // As many names as there are messages.
    const auto names = execute(
        "import itertools\n"
        "for i in itertools.count(): display({}, raw=True, display_id=str(i) * 20)");
    BOOST_TEST(names.status == Status::output_limit, names.error);
    BOOST_TEST(names.displays.size() < 20'000U);
    // One byte at a time, to either stream in turn.
    const auto turns = execute(
        "import sys\n"
        "while True: sys.stdout.write('o'); sys.stderr.write('e')");
    BOOST_TEST(turns.status == Status::output_limit, turns.error);
    BOOST_TEST(turns.stdout_text().size() + turns.stderr_text().size() ==
               turns.text.value().size());
    BOOST_TEST(turns.text.value().size() < (1u << 20) / 8);
    BOOST_TEST(text("print('usable')") == "usable");
}

BOOST_AUTO_TEST_CASE(forged_errors_are_bounded_and_valid) {
    options.max_output = 8 << 20;
    options.interrupt_grace = 60s;
    start("none");
    const auto large = execute(forge +
                               "forge('error', ename='é' * 5_000_000, evalue='ü' * 5_000_000, "
                               "traceback=['forged'])");
    BOOST_TEST(large.status == Status::error);
    BOOST_TEST(large.error_name.size() == 1024U);
    BOOST_TEST(large.error_value.size() == 64U << 10);
    BOOST_TEST(detail::is_utf8(large.error_name));
    BOOST_TEST(large.error == "forged");
    const auto many = execute(
        "while True: forge('error', ename='E', evalue='x' * 100_000, traceback=['forged'])");
    BOOST_TEST(many.status == Status::output_limit);
    // What is longer than a message may be ends the kernel, not the host.
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    const auto before = used.ru_maxrss;
    const auto name = execute(
        "forge('error', ename='E' * 100_000_000, evalue='v' * 100_000_000, traceback=['x'])",
        Duration(100s));
    BOOST_TEST(!name.ok());
    BOOST_TEST(!name.error.empty());
    BOOST_TEST(name.error_name.size() <= 1024U);
    BOOST_TEST(name.error_value.size() <= 64U << 10);
    ::getrusage(RUSAGE_SELF, &used);
    BOOST_TEST(used.ru_maxrss - before < 300'000);  // KiB
    if (!executor->kernel_alive()) test::run(context, executor->reset());
    BOOST_TEST(text("print('usable')").ends_with("usable"));
    // Surrogates and a display's name that is no text.
    const auto odd = execute(forge +
                             "forge('update_display_data', data={'text/plain': 'x'}, metadata={}, "
                             "transient={'display_id': 5})\n"
                             "forge('display_data', data={}, metadata={}, transient=[])\n"
                             "forge('display_data', data={}, metadata={}, "
                             "transient={'display_id': 'i' * 10_000})\n"
                             "raise ValueError('\\ud800')");
    BOOST_TEST(odd.displays.size() == 3U);
    BOOST_TEST(odd.error_name == "ValueError");
    BOOST_TEST(detail::is_utf8(odd.error_value));
}

BOOST_AUTO_TEST_CASE(programs_without_coroutines_have_the_same) {
    options.sandbox = "none";
    BlockingCodeExecutor blocking(test::registry(), options);
    if (test::distant()) return;
    blocking.start();
    ExecutionOptions how;
    how.displays = how.measure = true;
    std::size_t displays = 0;
    const auto result = blocking.stream(
        "open('made', 'w').close()\nx = [1]\nx",
        [&](ExecutionEvent& event) {
            displays += std::holds_alternative<CodeExecutionDisplay>(event);
        },
        how);
    BOOST_TEST(displays == 1U);
    BOOST_TEST(result.value_repr().value() == "[1]");
    BOOST_TEST(files_of(result).contains("made"));
    BOOST_TEST(blocking.execute("1 + 1", how).value_repr().value() == "2");
    BOOST_TEST(blocking.execute_approved("1 + 1", how).value_repr().value() == "2");
    BOOST_TEST(blocking.variables().at(0).name == "x");
    blocking.stop();
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace results_tests
