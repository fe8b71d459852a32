#pragma once
// A call that is put before a person: the one text of it for every way to ask.
#include <unistd.h>

#include <ipybox/approval/question_text.hpp>
#include <ipybox/approval_policy.hpp>
#include <ipybox/detail/private_directory.hpp>
#include <ipybox/error.hpp>
#include <optional>
#include <string>
#include <utility>

namespace ipybox {

// To be kept until the question is settled: a file with what was folded lives as long.
class Question {
public:
    // call: as code in the kernel wrote it. Throws Error: denied (it cannot be shown as a person
    // must see it: a denial with that reason), io_error (what is folded cannot be written). Any
    // thread.
    explicit Question(const ToolCall& call)
        : shown_(approval::question_text(call.server, call.tool, call.sent_arguments())) {
        if (!shown_.problem.empty()) throw Error(errc::denied, shown_.problem);
        if (shown_.whole.empty()) return;
        folded_.emplace(::geteuid(), ::geteuid());
        folded_->write_file(file_name, std::exchange(shown_.whole, {}), ::geteuid());
        shown_.text +=
            "  all of it: " + approval::quoted((folded_->path() / file_name).string()) + '\n';
    }

    // server.tool on one line, safe to show.
    const std::string& name() const noexcept { return shown_.name; }
    // The name, then one argument a line: names and values quoted, nothing in them that moves,
    // hides or forges text. Long values are folded, and the last line names a file with all of
    // it, which nobody but this user can read, and which vanishes with this object.
    std::string text() const { return shown_.name + '\n' + shown_.text; }

private:
    static constexpr const char* file_name = "arguments.txt";
    approval::QuestionText shown_;
    std::optional<detail::PrivateDirectory> folded_;
};

}  // namespace ipybox
