#include <dirent.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <ipybox/registry.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <limits>
#include <set>
#include <sstream>

#include "test_support.hpp"

namespace plugin_kernel_fork_tests {

using namespace ipybox;
using namespace ipybox::test;
using namespace std::chrono_literals;

constexpr const char* backend_name = "fork";
constexpr const char* default_sandbox = "bubblewrap";
// Elsewhere nobody can enter, so that each kernel starts on its own.
void complete(json::object& config, const std::string& sandbox) {
    if (sandbox == "bubblewrap" && !config.contains("start")) config["start"] = "forked";
}

BOOST_AUTO_TEST_SUITE(kernel_fork)

#include "kernel_cases.ipp"

namespace {

// In how many pid namespaces a process is.
long depth_of(pid_t pid) {
    const auto status = read_file("/proc/" + std::to_string(pid) + "/status");
    const auto numbers = status.substr(std::min(status.find("NSpid:"), status.size()));
    return std::count(numbers.begin(), std::find(numbers.begin(), numbers.end(), '\n'), '\t');
}

// Those below this one, itself first, and only below those of which visit(pid, command line) says
// so.
template <class Visit>
void visit_processes(const Visit& visit) {
    std::vector<pid_t> at = {::getpid()};
    while (!at.empty()) {
        const auto pid = at.back();
        at.pop_back();
        if (!visit(pid, read_file("/proc/" + std::to_string(pid) + "/cmdline"))) continue;
        for (const auto child : sandbox_kit::children_of(pid)) at.push_back(child);
    }
}

// Those that run a program of this name.
std::vector<pid_t> processes_named(std::string_view name) {
    std::vector<pid_t> found;
    visit_processes([&](pid_t pid, std::string_view command) {
        if (command.substr(0, command.find('\0')) == name) found.push_back(pid);
        return true;
    });
    return found;
}

// The first processes of the sandboxes that can be entered, or were.
std::vector<pid_t> entered_sandboxes() {
    std::vector<pid_t> found;
    visit_processes([&](pid_t pid, const std::string& command) {
        if (contains(command, "--init") && command.starts_with("/proc/self/fd/") &&
            depth_of(pid) == 3)
            found.push_back(pid);
        return true;
    });
    return found;
}

std::filesystem::path pid_namespace(pid_t pid) {
    std::error_code error;
    return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/ns/pid", error);
}

// The warm processes.
std::vector<pid_t> zygotes(const std::filesystem::path& python = kernel_python()) {
    std::vector<pid_t> found;
    visit_processes([&](pid_t pid, const std::string& command) {
        // Its kernels have the same command line, one namespace further inside.
        const bool warm = contains(command, "enter.so") && command.starts_with(python.string()) &&
                          depth_of(pid) == 2;
        if (warm) found.push_back(pid);
        return !warm;  // below it are kernels, and the copy that becomes one
    });
    return found;
}

// Without the copy of it that becomes the next one.
std::vector<pid_t> kernels_of(pid_t zygote) {
    auto found = sandbox_kit::children_of(zygote);
    std::erase_if(found, [](pid_t child) { return depth_of(child) != 3; });
    return found;
}

// The interpreter of an environment of the kernel's Python at `place`, without packages.
std::filesystem::path make_environment(const std::filesystem::path& place) {
    const auto python = place / "bin" / "python",
               installed = kernel_python().parent_path().parent_path();
    std::filesystem::create_directories(python.parent_path());
    std::filesystem::create_symlink(std::filesystem::canonical(kernel_python()), python);
    std::filesystem::copy_file(installed / "pyvenv.cfg", place / "pyvenv.cfg");
    return python;
}

// An environment of the kernel's Python at `own` with its packages and room for others, whose place
// is `packages`.
struct OwnEnvironment {
    KernelSpec spec;
    std::filesystem::path packages;

    OwnEnvironment(const std::filesystem::path& own, KernelSpec of) : spec(std::move(of)) {
        const auto installed = kernel_python().parent_path().parent_path();
        std::filesystem::path from;
        for (const auto& version : std::filesystem::directory_iterator(installed / "lib"))
            if (std::filesystem::is_directory(version.path() / "site-packages"))
                from = version.path() / "site-packages";
        packages = own / from.lexically_relative(installed);
        std::filesystem::create_directories(packages);
        std::filesystem::permissions(own, std::filesystem::perms(0755));
        write_file(packages / "installed.pth", from.string() + "\n");
        spec.python = make_environment(own);
        spec.interpreter.push_back(own);
        spec.policy.readable.push_back(own);
    }
};

// Whether the memory of a process holds a text.
bool memory_holds(pid_t pid, const std::string& text) {
    const auto place = "/proc/" + std::to_string(pid);
    std::ifstream memory(place + "/mem", std::ios::binary);
    BOOST_TEST_REQUIRE(memory.good());
    std::istringstream maps(read_file(place + "/maps"));
    for (std::string line; std::getline(maps, line);) {
        unsigned long from = 0, to = 0;
        char rights[5] = {};
        if (std::sscanf(line.c_str(), "%lx-%lx %4s", &from, &to, rights) != 3 || rights[0] != 'r' ||
            contains(line, "[v"))
            continue;
        std::string part(to - from, '\0');
        memory.clear();
        memory.seekg(static_cast<std::streamoff>(from));
        memory.read(part.data(), static_cast<std::streamsize>(part.size()));
        if (contains(part, text)) return true;
    }
    return false;
}

awaitable<void> kill_soon(std::vector<pid_t> processes) {
    co_await sleep_for(100ms);
    for (const auto process : processes) ::kill(process, SIGKILL);
}

// What a start took place as: a forked kernel's parent is outside of its sandbox.
awaitable<bool> is_forked(Kernel& kernel) {
    const auto cell = co_await run_cell(kernel, "import os; print(os.getppid())");
    co_return cell.out == "0\n";
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_forked_kernel_is_as_confined_as_one_that_was_started) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        BOOST_TEST(co_await is_forked(kernel));
        auto cell = co_await run_cell(kernel, R"py(
import os
status = dict(line.split(":\t") for line in open("/proc/self/status").read().splitlines())
print({status[name].strip("0 ") for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")})
print(status["NoNewPrivs"], status["Seccomp"], os.getsid(0) == os.getpid(), os.getuid())
print(sorted(os.listdir("/proc/self/fd"), key=int)[:6], os.statvfs("/proc/self/exe").f_flag & 1)
print({len(os.readlink(f"/proc/self/ns/{n}")) > 0 for n in ("user", "pid", "net", "mnt", "ipc", "uts")})
print(sorted(int(p) for p in os.listdir("/proc") if p.isdigit())[:2], 1 in [os.getpid()])
)py");
        BOOST_TEST(contains(cell.out, "{''}\n1 2 True 1000\n"), cell.all);
        BOOST_TEST(contains(cell.out, "['0', '1', '2', '3', '4', '5'] 1\n"), cell.all);
        cell = co_await run_cell(kernel, R"py(
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def refused(*call):
    ctypes.set_errno(0)
    return libc.syscall(*call) == -1 and ctypes.get_errno() == 1
print(refused(308, 3, 0), refused(101, 16, 1, 0, 0), refused(272, 0x10000000))  # setns, ptrace, unshare
for path in ("/proc/1/mem", "/proc/1/root/etc", "/etc/new", "/usr/new"):
    try:
        open(path, "r+b" if path.startswith("/proc") else "w")
        print("open", path)
    except OSError as error: pass
)py");
        BOOST_TEST(cell.out == "True True True\n", cell.all);
    });
}

BOOST_AUTO_TEST_CASE(a_fork_can_be_the_last_program) {
    Machine machine;
    const auto denied = [&] {
        auto spec = machine.spec();
        spec.policy.programs = Programs::deny;
        return spec;
    };
    const std::string attempts = R"py(
import ctypes, os
words = (ctypes.c_char_p * 2)(b"true", None)
for name, more in (("execv", ()), ("execve", (None,))):
    pid = os.fork()
    if pid == 0:
        ctypes.set_errno(0)
        getattr(ctypes.CDLL(None, use_errno=True), name)(b"/bin/true", words, *more)
        os._exit(100 + ctypes.get_errno())
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
)py";
    machine.with_kernel(denied(), [&](Kernel& kernel) -> awaitable<void> {
        BOOST_TEST(co_await is_forked(kernel));
        BOOST_TEST(kernel.process()->is_last_program());
        BOOST_TEST((co_await run_cell(kernel, attempts)).out == "101\n101\n");
        // One beside it, of the same warm process, has another policy.
        auto other = co_await machine.backend->start(*machine.sandbox, machine.spec());
        BOOST_TEST(co_await is_forked(*other));
        BOOST_TEST(!other->process()->is_last_program());
        BOOST_TEST((co_await run_cell(*other, attempts)).out == "0\n0\n");
        co_await other->shutdown();
    });
}

BOOST_AUTO_TEST_CASE(signals_of_a_kernel_reach_no_other_process) {
    Machine machine;
    machine.with_kernel([&](Kernel& other) -> awaitable<void> {
        const auto before = zygotes();
        BOOST_TEST_REQUIRE(before.size() == 1U);
        auto kernel = co_await machine.backend->start(*machine.sandbox, machine.spec());
        for (const auto* code : {"os.kill(0, 0)", "os.kill(-1, 19)", "os.kill(1, 9)"}) {
            co_await run_cell(*kernel, "import os, signal");
            co_await run_cell(*kernel, std::string("try: ") + code + "\nexcept OSError: pass");
        }
        ExecuteRequest request;
        request.code = "os.killpg(0, 9)";
        co_await kernel->execute(std::move(request));
        BOOST_CHECK_THROW(co_await finish(*kernel), Error);
        kernel.reset();
        BOOST_TEST((co_await run_cell(other, "print('on')")).out == "on\n");
        BOOST_TEST((zygotes() == before));
    });
}

BOOST_AUTO_TEST_CASE(nothing_of_a_session_is_in_the_memory_of_the_warm_process) {
    Machine machine;
    auto spec = machine.spec();
    const std::string canary = "canary-" + std::to_string(::getpid());
    spec.policy.env["SECRET"] = canary + "-in-the-environment";
    machine.with_kernel(std::move(spec), [&](Kernel& kernel) -> awaitable<void> {
        const auto found = zygotes();
        BOOST_TEST_REQUIRE(found.size() == 1U);
        const auto cell = co_await run_cell(
            kernel, "import os; print(os.environ['SECRET']); x = '" + canary + "-in-the-code'");
        BOOST_TEST(cell.out == canary + "-in-the-environment\n");
        const auto own = co_await run_cell(kernel, "print(open('/proc/self/status').read())");
        BOOST_TEST(!memory_holds(found[0], canary));
        BOOST_TEST(!memory_holds(found[0], machine.workspace.path().string()));
        // The search finds what is there.
        BOOST_TEST(memory_holds(found[0], "ipybox_kernel.zygote"));
    });
}

BOOST_AUTO_TEST_CASE(siblings_have_random_numbers_of_their_own) {
    Machine machine;
    std::vector<std::set<std::string>> seen(10);
    const auto ask = [&](Kernel& kernel) -> awaitable<void> {
        const auto cell = co_await run_cell(kernel, R"py(
import os, random, secrets, ssl, tempfile, uuid, numpy as np
for value in (random.random(), np.random.rand(), np.random.default_rng().random(), uuid.uuid1(), uuid.uuid4(),
              secrets.token_hex(), os.urandom(8).hex(), ssl.RAND_bytes(8).hex(),
              next(tempfile._get_candidate_names()), np.random.RandomState().rand()):
    print(value)
)py");
        std::istringstream lines(cell.out);
        std::string line;
        for (auto& values : seen) {
            BOOST_TEST_REQUIRE(static_cast<bool>(std::getline(lines, line)), cell.all);
            values.insert(line);
        }
    };
    for (int i = 0; i < 3; ++i) machine.with_kernel(ask);
    for (std::size_t i = 0; i < seen.size(); ++i)
        BOOST_TEST(seen[i].size() == 3U, "source " << i << " repeats itself");
}

BOOST_AUTO_TEST_CASE(a_copy_that_is_killed_before_it_is_a_kernel_is_made_again) {
    Machine machine;
    machine.with_kernel([&](Kernel&) -> awaitable<void> {
        const auto before = zygotes();
        for (const bool asked : {false, true}) {
            std::vector<pid_t> copies;
            while (copies.empty()) {
                co_await sleep_for(10ms);
                copies = sandbox_kit::children_of(before.at(0));
                std::erase_if(copies, [](pid_t child) { return depth_of(child) != 2; });
            }
            // One that has the request dies as well as one that waits for it.
            for (const auto copy : copies) ::kill(copy, asked ? SIGSTOP : SIGKILL);
            // Those that are killed at once have given their numbers back by then.
            if (asked) asio::co_spawn(machine.context, kill_soon(copies), asio::detached);
            const auto another = co_await machine.backend->start(*machine.sandbox, machine.spec());
            BOOST_TEST(co_await is_forked(*another));
            co_await another->shutdown();
        }
        BOOST_TEST((zygotes() == before));
    });
}

BOOST_AUTO_TEST_CASE(what_a_kernel_writes_to_first_is_its_own_before_it_starts) {
    Machine machine;
    machine.with_kernel([](Kernel&) -> awaitable<void> { co_await sleep_for(200ms); });
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        const auto cell =
            co_await run_cell(kernel, "import resource; print(resource.getrusage(0).ru_minflt)");
        // Of about 1,300, on Linux 5.14 or newer.
        BOOST_TEST(std::stoi(cell.out) < 700);
        // What the rehearsal was looked at with would be a way to the warm process and siblings.
        const auto shared = co_await run_cell(
            kernel, "for line in open('/proc/self/maps'):\n    if ' rw-s ' in line: print(line)");
        BOOST_TEST(shared.out == "");
    });
}

BOOST_AUTO_TEST_CASE(kernels_outlive_the_warm_process_and_the_next_has_a_new_one) {
    Machine machine;
    machine.with_kernel([&](Kernel& kernel) -> awaitable<void> {
        const auto before = zygotes();
        BOOST_TEST_REQUIRE(before.size() == 1U);
        co_await run_cell(kernel, "kept = 1");
        // Dead, and one that only hangs.
        for (const int number : {SIGKILL, SIGSTOP}) {
            for (const auto pid : zygotes()) ::kill(pid, number);
            auto next = co_await machine.backend->start(*machine.sandbox, machine.spec());
            BOOST_TEST(co_await is_forked(*next));
            BOOST_TEST((co_await run_cell(kernel, "print(kept)")).out == "1\n");
            BOOST_TEST(zygotes().size() == 1U);
            BOOST_TEST((zygotes() != before));
        }
    });
}

BOOST_AUTO_TEST_CASE(what_comes_too_late_for_a_fork_is_started_on_its_own) {
    json::object config;
    config["start"] = "auto";
    Machine machine("bubblewrap", config);
    const auto forked = [&](KernelSpec spec) {
        bool result = false;
        // The first one does not wait for the warm process.
        for (int i = 0; i < 100 && !result; ++i)
            machine.with_kernel(spec, [&](Kernel& kernel) -> awaitable<void> {
                result = co_await is_forked(kernel);
            });
        return result;
    };
    BOOST_TEST(forked(machine.spec()));
    for (const auto* name :
         {"PYTHONHASHSEED", "OMP_NUM_THREADS", "LD_BIND_NOW", "MALLOC_ARENA_MAX"}) {
        auto spec = machine.spec();
        spec.policy.env[name] = "1";
        machine.with_kernel(spec, [&](Kernel& kernel) -> awaitable<void> {
            BOOST_TEST(!co_await is_forked(kernel), name);
            const auto code = std::string("import os; print(os.environ['") + name + "'])";
            BOOST_TEST((co_await run_cell(kernel, code)).out == "1\n");
        });
    }
    // A package of the session's own, of which the warm process has another.
    auto spec = machine.spec();
    const auto site = machine.workspace.path() / "site";
    std::filesystem::create_directories(site / "numpy");
    write_file(site / "numpy" / "__init__.py", "mine = True\n");
    spec.policy.env["PYTHONPATH"] += ":" + site.string();
    machine.with_kernel(spec, [&](Kernel& kernel) -> awaitable<void> {
        BOOST_TEST(!co_await is_forked(kernel));
        BOOST_TEST((co_await run_cell(kernel, "import numpy; print(numpy.mine)")).out == "True\n");
    });
    // An interpreter where code can write.
    spec = machine.spec();
    const auto own = machine.workspace.path() / "environment",
               installed = kernel_python().parent_path().parent_path();
    spec.python = make_environment(own);
    std::filesystem::create_symlink(installed / "lib", own / "lib");
    machine.with_kernel(
        spec, [&](Kernel& kernel) -> awaitable<void> { BOOST_TEST(!co_await is_forked(kernel)); });
}

BOOST_AUTO_TEST_CASE(installed_packages_come_from_a_new_warm_process) {
    Machine machine;
    // Its own environment: other suites fork from the one that is installed.
    const test::TemporaryDirectory own;
    const OwnEnvironment environment(own.path(), machine.spec());
    const auto& spec = environment.spec;
    const auto nothing = [](Kernel&) -> awaitable<void> { co_return; };
    machine.with_kernel(spec, nothing);
    const auto before = zygotes(spec.python);
    BOOST_TEST(before.size() == 1U);
    machine.with_kernel(spec, nothing);
    BOOST_TEST((zygotes(spec.python) == before));
    // As pip leaves the directory.
    std::filesystem::create_directory(environment.packages / "new");
    machine.with_kernel(spec, [&](Kernel& kernel) -> awaitable<void> {
        BOOST_TEST(co_await is_forked(kernel));
        const auto now = zygotes(spec.python);
        BOOST_TEST_REQUIRE(!now.empty());
        BOOST_TEST((now != before));
    });
}

BOOST_AUTO_TEST_CASE(of_what_preloaded_modules_keep_open_kernels_have_only_code_and_each_its_own) {
    json::object config;
    config["preload"] = {"keeps_code", "keeps_a_file"};
    Machine machine("bubblewrap", config);
    const test::TemporaryDirectory own;
    const OwnEnvironment environment(own.path(), machine.spec());
    std::string code;
    std::istringstream maps(read_file("/proc/self/maps"));
    for (std::string line; std::getline(maps, line) && code.empty();)
        if (contains(line, " r-xp ") && contains(line, "/libm.so"))
            code = line.substr(line.find('/'));
    BOOST_TEST_REQUIRE(!code.empty());
    std::filesystem::copy_file(code, environment.packages / "keeps.so");
    std::filesystem::permissions(environment.packages / "keeps.so", std::filesystem::perms(0777));
    write_file(
        environment.packages / "keeps_code.py",
        "import ctypes, os\npath = os.path.dirname(os.path.realpath(__file__)) + '/keeps.so'\n"
        "library = ctypes.CDLL(path)\nfd = os.open(path, os.O_RDONLY)\n");
    write_file(environment.packages / "keeps_a_file.py",
               "import os\nfd = os.open(__file__, os.O_RDONLY)\n");
    for (int i = 0; i < 2; ++i)
        machine.with_kernel(environment.spec, [](Kernel& kernel) -> awaitable<void> {
            BOOST_TEST(co_await is_forked(kernel));
            const auto cell = co_await run_cell(kernel, R"(
import os, sys
print(sorted(m for m in sys.modules if m.startswith("keeps")))
import keeps_code
place = f"/proc/self/fd/{keeps_code.fd}"
print(os.readlink(place) == keeps_code.path, os.lseek(keeps_code.fd, 0, os.SEEK_CUR))
print(os.read(keeps_code.fd, 4)[1:])
for flags in (os.O_WRONLY, os.O_RDWR | os.O_TRUNC):
    try:
        os.open(place, flags)
        print("opened")
    except OSError as error:
        print(error.strerror)
)");
            BOOST_TEST(cell.out ==
                       "['keeps_code']\nTrue 0\nb'ELF'\nRead-only file system\nRead-only file "
                       "system\n");
        });
}

BOOST_AUTO_TEST_CASE(
    a_kernel_has_for_itself_what_it_writes_to_at_its_end_and_the_zygote_bears_all_ends) {
    for (const std::string last : {"writes_at_the_end", "ends_at_once"}) {
        const test::TemporaryDirectory own;
        json::object config;
        config["preload"] = {"writes_at_the_end", last};
        Machine machine("bubblewrap", config);
        const OwnEnvironment environment(own.path(), machine.spec());
        write_file(environment.packages / "writes_at_the_end.py", R"(
import atexit, mmap, os
page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
page[0] = 1
def is_own():
    import ctypes
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    with open("/proc/self/pagemap", "rb", buffering=0) as entries:
        entries.seek(address // mmap.PAGESIZE * 8)
        return bool(entries.read(8)[7] & 1)
@atexit.register
def end():
    if os.path.exists("in_a_workspace"):
        with open("in_a_workspace", "w") as file: file.write(str(is_own()))
    page[0] = 2
)");
        write_file(environment.packages / "ends_at_once.py",
                   "import atexit, os\natexit.register(os._exit, 0)\n");
        machine.with_kernel(environment.spec, [&](Kernel& kernel) -> awaitable<void> {
            BOOST_TEST(co_await is_forked(kernel));
            const auto cell = co_await run_cell(kernel, "open('in_a_workspace', 'w').close()");
            BOOST_TEST(cell.all == "", cell.all);
        });
        BOOST_TEST(read_file(machine.workspace.path() / "in_a_workspace") ==
                   (last == "ends_at_once" ? "" : "True"));
    }
}

BOOST_AUTO_TEST_CASE(spare_kernels_are_taken_and_replaced) {
    json::object config;
    config["spares"] = 1;
    Machine machine("bubblewrap", config);
    const auto held = [&] {
        auto spec = machine.spec();
        spec.owner = std::make_shared<int>();
        return spec;
    };
    std::set<std::string> pids;
    for (int i = 0; i < 4; ++i) {
        machine.with_kernel(held(), [&](Kernel& kernel) -> awaitable<void> {
            // What it has run while it waited is not seen.
            auto cell = co_await run_cell(
                kernel,
                "print('x' in globals(), repr(_), [n for n in dir() if n[0] != '_']); x = 1");
            BOOST_TEST(cell.out ==
                       "False '' ['In', 'Out', 'exit', 'get_ipython', 'open', 'quit']\n");
            co_await sleep_for(300ms);
        });
    }
    // Another policy has no use for it.
    auto spec = held();
    spec.policy.programs = Programs::deny;
    for (int i = 0; i < 2; ++i)  // the second one has waited itself
        machine.with_kernel(spec, [&](Kernel& kernel) -> awaitable<void> {
            BOOST_TEST(kernel.process()->is_last_program());
            co_await sleep_for(300ms);
        });
    spec = held();
    spec.policy.env["OTHER"] = "1";
    machine.with_kernel(spec, [&](Kernel& kernel) -> awaitable<void> {
        BOOST_TEST((co_await run_cell(kernel, "import os; print(os.environ['OTHER'])")).out ==
                   "1\n");
    });
    machine.backend->release_spares();
}

BOOST_AUTO_TEST_CASE(the_warm_process_waits_for_sessions_to_come) {
    Machine machine;
    json::object config;
    config["start"] = "warm";
    const auto session = [&](int seconds) {
        config["keep_warm"] = seconds;
        machine.backend = machine.registry.make<KernelBackend>("fork", machine.host, config);
        pid_t warm = 0;
        machine.with_kernel([&](Kernel& kernel) -> awaitable<void> {
            BOOST_TEST(co_await is_forked(kernel));
            warm = zygotes().at(0);
        });
        machine.backend.reset();
        return warm;
    };
    const auto first = session(5);
    BOOST_TEST(session(1) == first);
    BOOST_TEST(session(0) == first);
    BOOST_TEST(zygotes().size() == 1u);
    // The longest wish counts; then nothing keeps the io_context running.
    machine.context.restart();
    machine.context.run();
    BOOST_TEST(zygotes().empty());
    BOOST_TEST(session(0) != first);
    BOOST_TEST(zygotes().empty());
}

BOOST_AUTO_TEST_CASE(kernels_whose_time_or_network_is_counted_do_not_wait) {
    json::object config;
    config["spares"] = 1;
    Machine machine("bubblewrap", config);
    const auto kernels = [&](auto change) {
        auto spec = machine.spec();
        spec.owner = std::make_shared<int>();
        change(spec);
        std::size_t found = 0;
        machine.with_kernel(spec, [&](Kernel&) -> awaitable<void> {
            co_await sleep_for(500ms);
            found = kernels_of(zygotes().at(0)).size();
        });
        return found;
    };
    BOOST_TEST(kernels([](auto&) {}) == 2U);
    BOOST_TEST(kernels([](auto& spec) { spec.policy.limits.wall_seconds = 600; }) == 1U);
    BOOST_TEST(kernels([](auto& spec) { spec.owner.reset(); }) == 1U);
    // One of another policy is not kept for this one.
    BOOST_TEST(kernels([](auto& spec) { spec.policy.hidden.emplace_back("**/secret"); }) == 2U);
    machine.backend->release_spares();
}

BOOST_AUTO_TEST_CASE(what_is_in_the_way_of_one_session_is_not_in_that_of_others) {
    json::object config;
    config["start"] = "warm";
    Machine machine("bubblewrap", config);
    machine.with_kernel(
        [](Kernel& kernel) -> awaitable<void> { BOOST_TEST(co_await is_forked(kernel)); });
    auto spec = machine.spec();
    spec.policy.cwd = machine.workspace.path() / "removed";
    machine.start_error(spec);
    const auto other = machine.registry.make<KernelBackend>(backend_name, machine.host, config);
    const auto work = [&]() -> awaitable<void> {
        const auto kernel = co_await other->start(*machine.sandbox, machine.spec());
        BOOST_TEST(co_await is_forked(*kernel));
    };
    run(machine.context, work());
}

BOOST_AUTO_TEST_CASE(a_kernel_that_is_stopped_before_its_hello_harms_nobody_else) {
    Machine machine;
    const auto site = machine.workspace.path() / "site";
    std::filesystem::create_directories(site);
    machine.with_kernel([&](Kernel& other) -> awaitable<void> {
        const auto before = zygotes();
        const auto start = [&](const char* code, Duration patience,
                               Limits limits) -> awaitable<std::string> {
            write_file(site / "last_step.py", code);
            auto spec = machine.spec();
            spec.policy.env["PYTHONPATH"] += ":" + site.string();
            spec.policy.limits = limits;
            spec.extensions = {"last_step"};
            spec.init_timeout = patience;
            try {
                co_await machine.backend->start(*machine.sandbox, std::move(spec));
            } catch (const Error& error) {
                co_return error.what();
            }
            co_return std::string();
        };
        const std::string load = "\ndef load_ipython_extension(shell): pass\n";
        auto error = co_await start("import os; os.kill(os.getpid(), 9)", 30s, Limits());
        BOOST_TEST(contains(error, "SIGKILL"), error);
        error =
            co_await start("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", 2s, Limits());
        BOOST_TEST(contains(error, "in time"), error);
        // With less memory than it wants, by either limit.
        Limits small;
        small.memory_per_process = 64u << 20;
        error = co_await start(("x = b'x' * (200 << 20)" + load).c_str(), 30s, small);
        BOOST_TEST(contains(error, "MemoryError"), error);
        small = {};
        small.memory_total = 64u << 20;
        error = co_await start(("x = b'x' * (200 << 20)" + load).c_str(), 30s, small);
        BOOST_TEST(contains(error, "memory"), error);
        BOOST_TEST(co_await start(("x = 1" + load).c_str(), 30s, small) == "");
        BOOST_TEST((co_await run_cell(other, "print('on')")).out == "on\n");
        BOOST_TEST((zygotes() == before));
        // The last one was killed, not shut down: its end is not waited for.
        const auto limit = Clock::now() + 10s;
        while (kernels_of(before.at(0)).size() > 1 && Clock::now() < limit)
            co_await sleep_for(10ms);
        BOOST_TEST(kernels_of(before.at(0)).size() == 1U);
    });
}

BOOST_AUTO_TEST_CASE(a_kernel_that_breaks_the_protocol_is_killed) {
    const char* cases[] = {
        "link.send(b'\\xff\\xff\\xff\\x7fo')",
        "frame('?', b'')",
        "frame('x', b'{')",
        "frame('x', b'[]')",
        "frame('x', b'{\"ename\":\"E\",\"evalue\":\"\",\"traceback\":[1]}')",
        "frame('d', b'{\"a\":' + b'[' * 200_000 + b']' * 200_000 + b'}')",
        "frame('k', b'x' * 3_000_000)",
        "link.shutdown(socket.SHUT_WR)",
    };
    for (const auto* code : cases) {
        BOOST_TEST_CONTEXT(code) {
            json::object config;
            config["max_message_bytes"] = 2'000'000;
            Machine machine("none", config);
            machine.with_kernel([&](Kernel& kernel) -> awaitable<void> {
                const auto error = co_await fatal_error(kernel, std::string(R"py(
import os, socket, struct, time
link = socket.socket(fileno=os.dup(3))
def frame(kind, payload): link.sendall(struct.pack("<IB", len(payload), ord(kind)) + payload)
)py") + code + "\ntime.sleep(50)");
                BOOST_TEST((error.code() == errc::kernel_protocol), error.what());
                BOOST_TEST(contains(error.detail(), "reset()"));
            });
        }
    }
}

BOOST_AUTO_TEST_CASE(an_interrupt_of_what_comes_after_the_code_is_an_error_of_the_cell) {
    Machine machine("none");
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        const auto cell = co_await interrupted(kernel, R"py(
import time
def later():
    get_ipython().events.unregister("post_execute", later)
    print("on", flush=True)
    time.sleep(100)
get_ipython().events.register("post_execute", later)
)py",
                                               50ms);
        BOOST_TEST(!cell.ok);
        BOOST_TEST_REQUIRE(cell.error.has_value());
        BOOST_TEST(cell.error->name == "KeyboardInterrupt");
        BOOST_TEST((co_await run_cell(kernel, "print(1)")).out == "1\n");
    });
}

BOOST_AUTO_TEST_CASE(what_a_kernel_does_at_its_end_is_done_and_what_it_had_open_is_closed) {
    json::object config;
    config["spares"] = 1;
    Machine machine("bubblewrap", config);
    auto spec = machine.spec();
    spec.owner = std::make_shared<int>();
    machine.with_kernel(spec, [](Kernel& kernel) -> awaitable<void> {
        // To give back that memory takes longer than to go on with the next kernel, which is there.
        const auto cell = co_await run_cell(kernel, R"py(
import atexit, fcntl, mmap, os, sys, time
fcntl.flock(os.open("lock", os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)
@atexit.register
def end():
    time.sleep(0.2)
    print("x" * 1_000_000)
    with open("done", "w") as file: file.write("yes")
sys.large = mmap.mmap(-1, 400 << 20)
sys.large.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, len(sys.large), 4096): sys.large[at] = 1
held = open("held", "w")
count = held.write("all")
)py");
        BOOST_TEST(cell.all == "", cell.all);
        co_await sleep_for(300ms);
    });
    machine.with_kernel(spec, [](Kernel& kernel) -> awaitable<void> {
        const auto cell = co_await run_cell(kernel, R"py(
import fcntl
fcntl.flock(open("lock"), fcntl.LOCK_EX | fcntl.LOCK_NB)
print(open("done").read(), open("held").read())
)py");
        BOOST_TEST(cell.out == "yes all\n", cell.all);
    });
    machine.backend->release_spares();
}

BOOST_AUTO_TEST_CASE(
    a_kernel_that_forges_its_goodbye_does_nothing_behind_it_and_its_sandbox_goes_too) {
    Machine machine;
    auto spec = machine.spec();
    spec.owner = std::make_shared<int>();
    const auto check = [&]() -> awaitable<void> {
        auto kernel = co_await machine.backend->start(*machine.sandbox, spec);
        const auto own = sandbox_kit::open_pidfd(kernel->process()->pid());
        const auto around = entered_sandboxes();
        BOOST_TEST(around.size() == 1U);
        const auto cell = co_await run_cell(*kernel, R"py(
import atexit, ctypes, os, signal, socket
open("count", "w").close()
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_char * 48)]
@atexit.register
def go_on():
    timer, libc = ctypes.c_void_p(), ctypes.CDLL(None)
    libc.timer_create(1, ctypes.byref(Event(None, signal.SIGCONT, 0)), ctypes.byref(timer))
    libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 100_000, 0, 100_000), None)
    socket.socket(fileno=os.dup(3)).shutdown(socket.SHUT_WR)
    count = 0
    while True:
        with open("count", "w") as file: file.write("x" * count)
        count = count % 1000 + 1
)py");
        BOOST_TEST(cell.all == "", cell.all);
        co_await kernel->shutdown();
        // By a signal that it cannot take back, and without another turn of the host's.
        pollfd ends{own.get(), POLLIN, 0};
        BOOST_TEST(::poll(&ends, 1, 5'000) == 1);
        const auto end = Clock::now() + 5s;
        while (!entered_sandboxes().empty() && Clock::now() < end) co_await sleep_for(10ms);
        BOOST_TEST(entered_sandboxes().empty());
        const auto count = machine.workspace.path() / "count";
        const auto before = std::filesystem::last_write_time(count);
        co_await sleep_for(50ms);
        BOOST_TEST((std::filesystem::last_write_time(count) == before));
    };
    run(machine.context, check());
}

BOOST_AUTO_TEST_CASE(nobody_whom_a_kernel_has_started_outlives_it) {
    Machine machine;
    auto spec = machine.spec();
    spec.owner = std::make_shared<int>();
    const std::vector<std::pair<const char*, std::size_t>> codes = {
        {"pass", 0},
        {"import subprocess; it = subprocess.Popen(['sleep', '600'], start_new_session=True)", 1},
        {"import os; n = os.system('sleep 600 & sleep 600 &')", 2}};  // left behind
    const auto check = [&](const char* code, std::size_t count, bool shut) -> awaitable<void> {
        auto kernel = co_await machine.backend->start(*machine.sandbox, spec);
        BOOST_TEST((co_await run_cell(*kernel, code)).all == "");
        const auto own = sandbox_kit::open_pidfd(kernel->process()->pid());
        std::vector<UniqueFd> started;
        for (const auto end = Clock::now() + 10s; started.size() < count && Clock::now() < end;) {
            started.clear();
            for (const auto pid : processes_named("sleep"))
                started.push_back(sandbox_kit::open_pidfd(pid));
        }
        BOOST_TEST(started.size() == count);
        if (shut) co_await kernel->shutdown();
        kernel.reset();
        for (const auto& child : started) BOOST_TEST(is_readable(child.get()));
        // To give back its memory takes longer, and nobody waits for that.
        pollfd ends{own.get(), POLLIN, 0};
        BOOST_TEST(::poll(&ends, 1, 10'000) == 1);
    };
    for (const auto& [code, count] : codes)
        for (const bool shut : {true, false}) run(machine.context, check(code, count, shut));
}

BOOST_AUTO_TEST_CASE(
    a_sandbox_that_was_opened_ahead_is_taken_only_if_it_is_what_would_be_opened_now) {
    Machine machine;
    const auto workspace = machine.workspace.path(), env = workspace / ".env",
               kept = workspace / "kept";
    const auto write = [](const std::filesystem::path& path, const char* text) {
        write_file(path, text);
        std::filesystem::permissions(path, std::filesystem::perms(0666));
    };
    write(kept, "old");
    const TemporaryDirectory readable;
    const auto secret = readable.path() / ".env";
    write(secret, "secret");
    std::filesystem::permissions(readable.path(), std::filesystem::perms(0755));
    const auto directory = workspace / "directory";
    std::filesystem::create_directory(directory);
    auto spec = machine.spec();
    spec.policy.readable.push_back(readable.path());
    spec.policy.env["SECRET"] = secret;
    spec.policy.hidden.emplace_back("**/.env");
    spec.policy.write_protected.push_back(kept);
    const auto begin = [&] { return machine.backend->start(*machine.sandbox, spec); };
    const auto seen = [](Kernel& kernel) {
        return run_cell(kernel, R"py(
import os
print(os.listdir("directory"))
for name in (os.environ["SECRET"], ".env", "kept"):
    try:
        print(open(name).read() or "nothing", end=" ")
        print(open(name, "r+").name)
    except OSError as error: print(type(error).__name__, error.strerror)
)py");
    };
    // What the next kernel finds, and whether it got the sandbox that waited.
    const auto after =
        [&](std::function<void()> change) -> awaitable<std::pair<bool, std::string>> {
        auto kernel = co_await begin();
        std::vector<pid_t> waiting;
        for (const auto end = Clock::now() + 10s; waiting.empty() && Clock::now() < end;) {
            co_await sleep_for(20ms);
            waiting = entered_sandboxes();
            std::erase_if(waiting, [own = pid_namespace(kernel->process()->pid())](pid_t pid) {
                return pid_namespace(pid) == own;
            });
        }
        BOOST_TEST_REQUIRE(waiting.size() == 1U);
        const UniqueFd ahead(static_cast<int>(::syscall(SYS_pidfd_open, waiting[0], 0)));
        BOOST_TEST_REQUIRE(!is_readable(ahead.get()));
        change();
        co_await kernel->shutdown();
        kernel = co_await begin();
        const bool taken = !is_readable(ahead.get());  // else it has ended
        const auto cell = co_await seen(*kernel);
        co_await kernel->shutdown();
        co_return std::pair(taken, cell.out);
    };
    const auto all = [&]() -> awaitable<void> {
        auto first = co_await begin();
        co_await first->shutdown();
        const std::string hidden = "PermissionError Permission denied\n",
                          old = "old OSError Read-only file system\n";
        std::function<void()> change = [] {};
        auto found = co_await after(change);
        BOOST_TEST(found.first);
        BOOST_TEST(found.second == "[]\n" + hidden + hidden + old);
        // By the host, or by another session's code.
        const std::vector<std::function<void()>> changes = {
            [&] { write(env, "secret"); },
            [&] {
                write(readable.path() / "new", "another secret");
                std::filesystem::rename(readable.path() / "new", secret);
            },
            [&] {
                std::filesystem::create_hard_link(secret, readable.path() / "same");
                std::filesystem::remove(secret);
                std::filesystem::rename(readable.path() / "same", secret);
            }};
        for (const auto& one : changes) {
            found = co_await after(one);
            BOOST_TEST(!found.first);
            BOOST_TEST(found.second == "[]\n" + hidden + hidden + old);
        }
        change = [&] {
            std::filesystem::rename(directory, workspace / "aside");
            std::filesystem::create_directory(directory);
            write(directory / "file", "");
        };
        found = co_await after(change);
        // Nothing is mounted there: either way it is the new one that is seen.
        BOOST_TEST(found.second == "['file']\n" + hidden + hidden + old);
        change = [&] {
            write(workspace / "new", "new");
            std::filesystem::rename(workspace / "new", kept);
        };
        found = co_await after(change);
        BOOST_TEST(!found.first);
        BOOST_TEST(found.second ==
                   "['file']\n" + hidden + hidden + "new OSError Read-only file system\n");
        struct stat status{};
        BOOST_TEST_REQUIRE(::stat(workspace.c_str(), &status) == 0);
        const auto aside = workspace.string() + "-aside";
        change = [&] {
            std::filesystem::rename(workspace, aside);
            BOOST_TEST(::mkdir(workspace.c_str(), status.st_mode & 07777) == 0);
            if (::geteuid() == 0)
                BOOST_TEST(::chown(workspace.c_str(), status.st_uid, status.st_gid) == 0);
            std::filesystem::create_directory(directory);
        };
        found = co_await after(change);
        BOOST_TEST(!found.first);
        BOOST_TEST(!contains(found.second, "new"));
        std::filesystem::remove_all(aside);
        // With the last kernel it goes.
        for (const auto end = Clock::now() + 10s;
             !entered_sandboxes().empty() && Clock::now() < end;)
            co_await sleep_for(20ms);
        BOOST_TEST(entered_sandboxes().empty());
    };
    run(machine.context, all());
}

BOOST_AUTO_TEST_CASE(a_sandbox_that_is_opened_ahead_while_kernels_change_goes_with_the_last_one) {
    Machine machine;
    const auto spec = machine.spec();
    const auto live_for = [&](Clock::duration time) -> awaitable<void> {
        auto kernel = co_await machine.backend->start(*machine.sandbox, spec);
        co_await sleep_for(time);
        co_await kernel->shutdown();
    };
    const auto all = [&]() -> awaitable<void> {
        for (auto time = 5ms; time < 45ms; time += 2ms) {
            co_await live_for(0ms);
            co_await live_for(time);  // the next one is about to be opened, is opened, or there
            co_await live_for(0ms);
            const auto end = Clock::now() + 5s;
            while (!entered_sandboxes().empty() && Clock::now() < end) co_await sleep_for(20ms);
            BOOST_TEST(entered_sandboxes().empty());
        }
    };
    run(machine.context, all());
}

BOOST_AUTO_TEST_CASE(a_kernel_that_sends_without_end_is_waited_for_a_second_only) {
    Machine machine;
    machine.with_kernel([](Kernel& kernel) -> awaitable<void> {
        co_await run_cell(kernel, R"py(
import atexit, os
@atexit.register
def end():
    while True: os.write(3, b"x" * 65536)
)py");
    });
}

BOOST_AUTO_TEST_CASE(many_forks_leave_nothing_behind) {
    const auto open_files = [] {
        std::string list = "open:";
        std::error_code gone;
        for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd"))
            list += " " + std::filesystem::read_symlink(file.path(), gone).string();
        return list;
    };
    Machine machine;
    const auto descriptors = [](pid_t pid) {
        const std::filesystem::path place = "/proc/" + std::to_string(pid) + "/fd";
        return std::distance(std::filesystem::directory_iterator(place), {});
    };
    const auto memory = [](pid_t pid) {  // of its own, KiB
        ::malloc_trim(0);                // what earlier cases have freed is not ours any more
        const auto text = read_file("/proc/" + std::to_string(pid) + "/status");
        const auto at = text.find("RssAnon:");
        return at == text.npos ? 0L : std::stol(text.substr(at + 8));
    };
    const auto one = [](Kernel& kernel) -> awaitable<void> {
        const auto cell = co_await run_cell(kernel, "print(1)");
        BOOST_REQUIRE(cell.out == "1\n");
    };
    const char* full = std::getenv("IPYBOX_TEST_FULL");
    const int count = full != nullptr ? 10'000 : 60;
    // What is kept for the next of each kind is there by then.
    const auto fork = [&](int times, Clock::duration least, std::ptrdiff_t most) {
        for (int i = 0; i < times; ++i) machine.with_kernel(one);
        // The last one's end is seen, and that of the sandbox that waited for another.
        const auto end = Clock::now() + 10s;
        do {
            machine.context.restart();
            machine.context.run_for(least);
        } while ((!entered_sandboxes().empty() || descriptors(::getpid()) > most) &&
                 Clock::now() < end);
    };
    fork(30, 1s, std::numeric_limits<std::ptrdiff_t>::max());
    const auto zygote = zygotes().at(0);
    const auto ours = descriptors(::getpid()), theirs = descriptors(zygote);
    const auto our_memory = memory(::getpid()), their_memory = memory(zygote);
    fork(count, 200ms, ours);
    BOOST_TEST((zygotes() == std::vector<pid_t>{zygote}));
    BOOST_TEST(kernels_of(zygote).empty());
    BOOST_TEST(descriptors(zygote) == theirs);
    BOOST_TEST(descriptors(::getpid()) == ours,
               std::to_string(ours) + " before, now " + open_files());
    BOOST_TEST(memory(zygote) - their_memory < 1024);
#ifndef IPYBOX_TEST_KEEPS_MEMORY
    BOOST_TEST(memory(::getpid()) - our_memory < 1024);
#else
    (void)our_memory;
#endif
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace plugin_kernel_fork_tests
