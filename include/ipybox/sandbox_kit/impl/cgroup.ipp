#pragma once
#include <ipybox/sandbox_kit/cgroup.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ipybox/compilation.hpp>
#include <memory>
#include <optional>
#include <sstream>

namespace ipybox {

IPYBOX_DECL Cgroup::Cgroup(std::uint64_t memory) {
    const auto [place, version] = find_place();
    remove_abandoned(place);
    if (version == 2) turn_on_memory(place);
    const auto self = std::to_string(::getpid());
    for (int attempt = 0; path_.empty(); ++attempt) {
        const auto path = place / (std::string(name_start) + self + "-" + start_time(self) + "-" +
                                   std::to_string(serial()));
        if (::mkdir(path.c_str(), 0755) == 0)
            path_ = path;
        else if (errno != EEXIST || attempt == 100)
            refuse("cannot create " + path.string() + ": " + std::strerror(errno));
    }
    second_version_ = version == 2;
    try {
        if (second_version_) {
            set("memory.max", std::to_string(memory));
            if (has("memory.swap.max")) set("memory.swap.max", "0");
            if (has("memory.oom.group")) set("memory.oom.group", "0");
        } else {
            set("memory.limit_in_bytes", std::to_string(memory));
            if (has("memory.memsw.limit_in_bytes"))
                set("memory.memsw.limit_in_bytes", std::to_string(memory));
        }
        entrance_.reset(::open((path_ / "cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
        if (!entrance_) refuse("cannot use " + path_.string() + ": " + std::strerror(errno));
    } catch (...) {
        ::rmdir(path_.c_str());
        throw;
    }
}

IPYBOX_DECL Cgroup::Cgroup(Cgroup&& other) noexcept
    : path_(std::exchange(other.path_, {})),
      entrance_(std::move(other.entrance_)),
      second_version_(other.second_version_) {}

IPYBOX_DECL std::string Cgroup::problem() {
    try {
        if (find_place().version == 1) const Cgroup trial(std::uint64_t{1} << 30);
        return "";
    } catch (const Error& error) {
        return error.detail().substr(refusal.size());
    }
}

IPYBOX_DECL void Cgroup::measure(Statistics& known) const {
    const auto peak = sandbox_kit::read_proc(
        path_ / (second_version_ ? "memory.peak" : "memory.memsw.max_usage_in_bytes"));
    const auto plain = sandbox_kit::read_proc(path_ / "memory.max_usage_in_bytes");
    for (const auto& text : {peak, plain})
        if (!text.empty()) {
            known.peak_memory = std::strtoull(text.c_str(), nullptr, 10);
            break;
        }
    std::istringstream events(
        sandbox_kit::read_proc(path_ / (second_version_ ? "memory.events" : "memory.oom_control")));
    std::string name;
    for (std::uint64_t value = 0; events >> name >> value;)
        if (name == "oom_kill") known.memory_kills = value;
}

IPYBOX_DECL void Cgroup::report(std::vector<Violation>& violations) const {
    Statistics known;
    measure(known);
    if (const auto kills = known.memory_kills.value_or(0))
        violations.push_back({"memory-total",
                              "a process was killed for using more memory than the limit "
                              "memory-total allows",
                              kills});
}

IPYBOX_DECL void Cgroup::refuse(const std::string& why) {
    throw Error(errc::sandbox_refused,
                std::string(refusal) + why + "; run in a delegated control group (systemd-run " +
                    (::geteuid() == 0 ? "" : "--user ") +
                    "--scope --property=Delegate=yes …), or limit memory per process");
}

IPYBOX_DECL unsigned Cgroup::serial() {
    static std::atomic<unsigned> count{0};
    return ++count;
}

IPYBOX_DECL Cgroup::Place Cgroup::find_place() {
    std::istringstream lines(sandbox_kit::read_proc("/proc/self/cgroup"));
    std::optional<std::filesystem::path> first, second;
    for (std::string line; std::getline(lines, line);) {
        const auto name = line.find(':'), path = line.find(':', name + 1);
        if (path == std::string::npos) continue;
        const auto controllers = "," + line.substr(name + 1, path - name - 1) + ",";
        if (controllers == ",,") second = line.substr(path + 1);
        if (controllers.find(",memory,") != std::string::npos) first = line.substr(path + 1);
    }
    if (first) {
        const std::filesystem::path root = "/sys/fs/cgroup/memory";
        // In a container the path may be that of the host.
        auto own = root / first->relative_path();
        if (!std::filesystem::exists(own)) own = root;
        if (::access(own.c_str(), W_OK) == 0) return {own, 1};
        refuse(own.string() + " cannot be written");
    }
    if (!second) refuse("there is no cgroup file system");
    const std::filesystem::path root = "/sys/fs/cgroup";
    auto own = root / second->relative_path();
    if (!std::filesystem::exists(own)) own = root;
    // Where an earlier run put us.
    if (own.filename() == host) own = own.parent_path();
    for (const auto* name : {"", "cgroup.procs", "cgroup.subtree_control"})
        if (::access((own / name).c_str(), W_OK) != 0)
            refuse(own.string() + " is not delegated to this user");
    if (!is_delegated(own)) refuse("systemd has not delegated " + own.string());
    if (!lists_memory(own / "cgroup.controllers"))
        refuse("the memory controller is not delegated to " + own.string());
    return {own, 2};
}

IPYBOX_DECL bool Cgroup::is_delegated(const std::filesystem::path& group) {
    const auto unit = group.filename().string();
    const auto is = [&unit](std::string_view kind) { return unit.ends_with(kind); };
    // Not systemd's, or made by whom it was delegated to.
    if (!is(".service") && !is(".scope") && !is(".slice")) return true;
    for (const auto* mark : {"user.delegate", "trusted.delegate"}) {
        char value = 0;
        if (::getxattr(group.c_str(), mark, &value, 1) == 1) return value == '1';
    }
    // The systemd of a user leaves no mark in older versions.
    if (::geteuid() == 0 || unit.find('\'') != std::string::npos) return false;
    const char* given = std::getenv("PATH");
    const std::string path = host_search_path(given != nullptr ? given : "");
    if (path.find('\'') != std::string::npos) return false;
    const auto command = "export PATH='" + path +
                         "'; timeout 5 systemctl --user show --property=Delegate --value -- '" +
                         unit + "' 2>/dev/null";
    const std::unique_ptr<FILE, int (*)(FILE*)> answer(::popen(command.c_str(), "re"), ::pclose);
    char word[8] = {};
    return answer && std::fgets(word, sizeof word, answer.get()) != nullptr &&
           std::string_view(word) == "yes\n";
}

IPYBOX_DECL void Cgroup::turn_on_memory(const std::filesystem::path& group) {
    const auto control = group / "cgroup.subtree_control";
    for (int attempt = 0; !lists_memory(control); ++attempt) {
        const UniqueFd file(::open(control.c_str(), O_WRONLY | O_CLOEXEC));
        if (file && ::write(file.get(), "+memory", 7) == 7) return;
        if (!file || errno != EBUSY || attempt == 100)
            refuse("cannot turn the memory controller on in " + group.string() + ": " +
                   std::strerror(errno));
        move_members(group);
    }
}

IPYBOX_DECL bool Cgroup::lists_memory(const std::filesystem::path& file) {
    std::istringstream names(sandbox_kit::read_proc(file));
    for (std::string name; names >> name;)
        if (name == "memory") return true;
    return false;
}

IPYBOX_DECL void Cgroup::move_members(const std::filesystem::path& group) {
    if (::mkdir((group / host).c_str(), 0755) != 0 && errno != EEXIST)
        refuse("cannot create " + (group / host).string() + ": " + std::strerror(errno));
    std::istringstream members(sandbox_kit::read_proc(group / "cgroup.procs"));
    for (std::string pid; members >> pid;) {
        const UniqueFd file(::open((group / host / "cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
        if (::write(file.get(), pid.data(), pid.size()) < 0 && errno != ESRCH)
            refuse("cannot move process " + pid + " to " + (group / host).string() + ": " +
                   std::strerror(errno));
    }
}

IPYBOX_DECL void Cgroup::set(const char* name, const std::string& value) const {
    const auto file_path = path_ / name;
    const UniqueFd file(::open(file_path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file ||
        ::write(file.get(), value.data(), value.size()) != static_cast<ssize_t>(value.size()))
        refuse("cannot set " + file_path.string() + ": " + std::strerror(errno));
}

IPYBOX_DECL std::string Cgroup::start_time(const std::string& pid) {
    const auto stat = sandbox_kit::read_proc("/proc/" + pid + "/stat");
    std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
    std::string field;
    for (int number = 3; number <= 22; ++number) fields >> field;
    return field;
}

IPYBOX_DECL void Cgroup::remove_abandoned(const std::filesystem::path& place) {
    std::error_code error;
    for (std::filesystem::directory_iterator entry(place, error), end; !error && entry != end;
         entry.increment(error)) {
        const auto name = entry->path().filename().string();
        if (!name.starts_with(name_start)) continue;
        const auto dash = name.find('-', name_start.size());
        const auto next = name.find('-', dash + 1);
        if (next == std::string::npos) continue;
        const auto pid = name.substr(name_start.size(), dash - name_start.size());
        if (start_time(pid) != name.substr(dash + 1, next - dash - 1)) clear(entry->path());
    }
}

IPYBOX_DECL void Cgroup::clear(const std::filesystem::path& group) noexcept {
    try {
        // Members may still be ending; a bomb may still be forking.
        for (int attempt = 0; attempt < 200; ++attempt) {
            if (::rmdir(group.c_str()) == 0 || errno != EBUSY) return;
            std::istringstream members(sandbox_kit::read_proc(group / "cgroup.procs"));
            for (pid_t pid = 0; members >> pid;)
                if (pid > 1) ::kill(pid, SIGKILL);
            ::usleep(5'000);
        }
    } catch (const std::exception&) {
        // No memory to look: the next start removes it.
    }
}

}  // namespace ipybox
