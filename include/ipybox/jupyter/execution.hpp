#pragma once
// What Jupyter messages tell about one execution at a time, whichever way they travel.
#include <deque>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_text.hpp>
#include <ipybox/error.hpp>
#include <ipybox/kernel_backend.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox {

// A message that no kernel may send; what() says what is wrong with it.
struct JupyterBreach : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The content of an execute_request. Throws errc::bad_argument for code that is no UTF-8.
inline json::object execute_content(ExecuteRequest request) {
    if (detail::repair_utf8(request.code) != request.code)
        throw Error(errc::bad_argument, "the code is not valid UTF-8; encode it so");
    json::object content;
    content["code"] = std::move(request.code);
    content["silent"] = request.silent;
    content["store_history"] = false;
    content["user_expressions"] = json::object();
    content["allow_stdin"] = request.allow_input;
    // True would abort requests that arrive shortly after an error: the next cell, say.
    content["stop_on_error"] = false;
    return content;
}

// Fed with messages of the iopub and shell channels; gives what Kernel::next() returns. The
// functions that take a message read its content only when it matters, by `read()`, which returns
// a json::object.
class JupyterExecution {
public:
    // The request of this msg_id was sent, or is about to be.
    void begin(std::string id) {
        replied_ = idle_ = error_shown_ = false;
        ok_ = true;
        unpublished_.reset();
        reply_grace_ = never;
        id_ = std::move(id);
    }
    // Forgets the execution and its output.
    void abandon() {
        id_.clear();
        pending_.clear();
    }
    // The running execution's msg_id; empty when there is none.
    const std::string& id() const noexcept { return id_; }
    // Its execute_reply has come.
    bool replied() const noexcept { return replied_; }
    // Nobody has taken all of its output yet.
    bool busy() const noexcept { return !id_.empty() || !pending_.empty(); }
    // When to ask again without a message: take() waits for the reply of an idle kernel until then.
    Clock::time_point reply_grace() const noexcept { return reply_grace_; }

    // Output with another parent comes from threads that outlive their cell. A notebook would show
    // it below the old cell; here it goes to the running execution, so that nothing printed is
    // lost. Everything else of other parents (our requests at the start, comms) is not ours to
    // show.
    template <class Read>
    void on_iopub(std::string_view type, std::string_view parent, Read read) {
        const bool ours = !id_.empty() && parent == id_;
        if (type == "status") {
            if (!ours || text_of(read(), "execution_state") != "idle") return;
            idle_ = true;
        } else if (id_.empty()) {
            return;
        } else if (type == "stream") {
            const json::object content = read();
            Stream stream;
            stream.is_stderr = text_of(content, "name") == "stderr";
            stream.text = text_of(content, "text");
            if (!stream.text.empty()) pending_.emplace_back(std::move(stream));
        } else if (type == "display_data" || type == "update_display_data" ||
                   type == "execute_result") {
            json::object content = read();
            Display display;
            display.is_result = type == "execute_result";
            display.data = object_of(content, "data");
            display.metadata = object_of(content, "metadata");
            display.is_update = type == "update_display_data";
            display.display_id = display_id_of(content);
            pending_.emplace_back(std::move(display));
        } else if (type == "error" && ours) {
            error_shown_ = true;
            pending_.emplace_back(error_of(read()));
        }
    }

    // For an iopub message that takes more than `limit` bytes, as it is or once decoded: a display
    // is left out, and the cell's errors say so. False when the message is none.
    bool leave_out(std::string_view type, std::size_t limit) {
        if (type != "display_data" && type != "update_display_data" && type != "execute_result")
            return false;
        if (id_.empty()) return true;
        Stream stream;
        stream.is_stderr = true;
        stream.text = "[ipybox] a display was left out: it takes more than the " +
                      std::to_string(limit >> 20) +
                      " MiB that a message may; show less of it, or write it to a file\n";
        pending_.emplace_back(std::move(stream));
        return true;
    }

    // Takes note of the reply to the running execution; ignores everything else.
    template <class Read>
    void on_shell(std::string_view type, std::string_view parent, Read read) {
        if (type != "execute_reply" || id_.empty() || parent != id_) return;
        const json::object content = read();
        const auto status = text_of(content, "status");
        ok_ = status == "ok";
        replied_ = true;
        if (status == "error") unpublished_ = error_of(content);
    }

    // An input_request becomes an InputWanted, if the running execution sent it; true then. The
    // caller feeds no other one before that is answered: a kernel's flood stays in the kernel.
    template <class Read>
    bool on_stdin(std::string_view type, std::string_view parent, Read read) {
        if (type != "input_request" || id_.empty() || parent != id_) return false;
        const json::object content = read();
        InputWanted wanted;
        wanted.prompt = text_of(content, "prompt");
        const auto* password = content.if_contains("password");
        wanted.is_password = password != nullptr && password->is_bool() && password->get_bool();
        pending_.emplace_back(std::move(wanted));
        return true;
    }

    // The next output, if it is known already; asked again when no message waits to be fed.
    std::optional<KernelOutput> take() {
        if (pending_.empty()) finish();
        if (pending_.empty()) return std::nullopt;
        std::optional<KernelOutput> output(std::move(pending_.front()));
        pending_.pop_front();
        return output;
    }
    // No message waits: an idle kernel whose reply is missing gets this long.
    void expect_reply(Duration grace) {
        if (idle_ && reply_grace_ == never) reply_grace_ = Clock::now() + grace;
    }

    // A member that must be text. Throws JupyterBreach.
    static std::string text_of(const json::object& content, std::string_view name) {
        const auto* text = detail::find_string(content, name);
        if (text == nullptr)
            throw JupyterBreach("a message without its \"" + std::string(name) + "\"");
        return std::string(*text);
    }

    // What an `error` message or a reply of that status says. Throws JupyterBreach.
    static PythonError error_of(const json::object& content) {
        PythonError error;
        error.name = text_of(content, "ename");
        error.value = text_of(content, "evalue");
        const auto* lines = content.if_contains("traceback");
        if (lines == nullptr || !lines->is_array())
            throw JupyterBreach("an error without its traceback");
        for (const auto& line : lines->get_array()) {
            if (!line.is_string()) throw JupyterBreach("an error without its traceback");
            if (!error.traceback.empty()) error.traceback += '\n';
            error.traceback += line.get_string();
        }
        return error;
    }

private:
    // Empty for one that no sensible program makes.
    static std::string display_id_of(const json::object& content) {
        const auto* transient = detail::object_of(content, "transient");
        const auto* id = transient ? detail::find_string(*transient, "display_id") : nullptr;
        return id && id->size() <= max_display_id ? detail::repair_utf8(*id) : std::string();
    }

    static json::object object_of(json::object& content, std::string_view name) {
        auto* value = content.if_contains(name);
        if (value == nullptr || !value->is_object())
            throw JupyterBreach("a message without its \"" + std::string(name) + "\"");
        return std::move(value->get_object());
    }

    void finish() {
        // A KeyboardInterrupt between the cell's end and its reply leaves the cell unanswered.
        const bool unanswered = idle_ && Clock::now() >= reply_grace_;
        if (id_.empty() || !idle_ || !(replied_ || unanswered)) return;
        id_.clear();
        // An error outside the cell's own run is not published.
        if (unpublished_ && !error_shown_) pending_.emplace_back(std::move(*unpublished_));
        Done done;
        done.ok = replied_ && ok_;
        pending_.emplace_back(done);
    }

    std::string id_;
    bool replied_ = false, idle_ = false, ok_ = true, error_shown_ = false;
    std::optional<PythonError> unpublished_;  // an error that so far only the reply tells of
    Clock::time_point reply_grace_ = never;
    std::deque<KernelOutput> pending_;
};

}  // namespace ipybox
