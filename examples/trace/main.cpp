// Runs the code given as its argument, and writes what took which time to standard error, for
// OpenTelemetry. The code may ask for input, which is read from standard input.
//
//   trace 'name = input("Who? ")
//   print("hello", name)' 2>spans.jsonl
#include <ipybox/executor/blocking.hpp>

#include <iostream>

#include "otlp.hpp"

int main(int argc, char** argv) try {
    using namespace ipybox;
    if (argc != 2) {
        std::cerr << "usage: trace CODE\n";
        return 2;
    }
    CodeExecutorOptions options;
    options.on_span = OtlpLines(std::cerr);
    options.allow_input = true;
    BlockingCodeExecutor executor(std::move(options));
    executor.start();
    const auto result = executor.stream(argv[1], [](ExecutionEvent& event) {
        if (const auto* chunk = std::get_if<CodeExecutionChunk>(&event)) std::cout << chunk->text;
        if (const auto* request = std::get_if<ApprovalRequest>(&event)) request->reject();
        const auto* question = std::get_if<InputRequest>(&event);
        if (!question) return;
        std::cout << question->to_string() << ' ' << std::flush;
        std::string line;
        if (std::getline(std::cin, line)) {
            question->answer(std::move(line));
        } else {
            question->refuse();
        }
    });
    if (!result.ok()) std::cout << result.error << '\n';
    return result.ok() ? 0 : 1;
} catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
}
