#pragma once
// Where a person types Python: several lines, history, completion. libedit does the editing, on a
// thread of its own because it waits for keys.
#include <functional>
#include <ipybox/async.hpp>
#include <ipybox/executor/execution.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ipybox::app {

// One for the process, like its terminal. Used on the executor's thread, unless it says otherwise.
// While something is typed nobody asks a question at the terminal, and what others print waits.
class LineEditor {
public:
    // How what was typed can go on. On the executor's thread; what it throws means "in no way".
    using Complete = std::function<awaitable<CodeCompletions>(std::string)>;

    // history: the oldest first. color: of the prompt. cancel: ends what `complete` waits for.
    // Throws Error: io_error (threads or descriptors are used up).
    LineEditor(asio::any_io_executor executor, std::vector<std::string> history, bool color,
               Complete complete, std::function<void()> cancel);
    // Nothing is being read any more.
    ~LineEditor();
    LineEditor(const LineEditor&) = delete;
    LineEditor& operator=(const LineEditor&) = delete;

    enum class End { typed, interrupted, left };
    struct Input {
        End end = End::left;  // left: by Ctrl-D, or the terminal is gone
        std::string text;     // valid UTF-8 without the end of the line
    };
    // A cell, or one line that begins with a colon.
    awaitable<Input> read_cell();
    // What code asks for: one line. prompt: printable. hidden: what is typed is not shown. over:
    // code waits no more; what has not begun by then ends as interrupted.
    awaitable<Input> read_answer(std::string prompt, bool hidden, std::shared_ptr<const bool> over);
    // Ends what is being read as interrupted; does nothing when nothing is. From any thread.
    void interrupt();
    // For Up, from now on.
    void remember(std::string cell);

private:
    struct Impl;
    struct Request;
    awaitable<Input> read(Request request);
    std::shared_ptr<Impl> impl_;
};

}  // namespace ipybox::app
