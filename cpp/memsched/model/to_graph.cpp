#include "memsched/model/to_graph.h"

#include <stdexcept>

namespace memsched {
namespace {

constexpr std::size_t max_pieces = 100'000;

class GraphWriter {
  public:
    GraphWriter(const Chain& chain, const Chunk& chunk) : columns_(chain.columns()), chunk_(chunk) {}

    GraphData build() {
        data_.name = columns_.name;
        data_.resident = columns_.resident;
        const std::size_t n = columns_.forward_time.size();
        std::vector<std::vector<TensorId>> a(n + 1), tape(n + 1), d(n + 1);
        a[0] = cut("a0", columns_.activation[0], Role::input);
        for (std::size_t k = 1; k <= n; ++k) {
            a[k] = cut("a" + std::to_string(k), columns_.activation[k], Role::activation);
            tape[k] = tapes(k);
        }
        for (std::size_t k = n + 1; k-- > 0;) {
            d[k] = {add("d" + std::to_string(k), columns_.gradient[k], Role::gradient)};
        }
        for (std::size_t k = 1; k <= n; ++k) {
            Op op = make("F", k, Phase::forward, columns_.forward_time[k - 1], columns_.forward_overhead[k - 1]);
            op.reads = a[k - 1];
            op.writes = joined({&a[k], &tape[k]});
            op.tape = tape[k];
            if (!op.tape.empty()) {
                op.skip_workspace = columns_.transient_overhead[k - 1];
            }
            data_.ops.push_back(std::move(op));
        }
        Op loss = make("", n + 1, Phase::backward, 0, 0);
        loss.name = loss.kind = "loss";
        loss.reads = a[n];
        loss.writes = d[n];
        data_.ops.push_back(std::move(loss));
        for (std::size_t k = n; k >= 1; --k) {
            Op op = make("B", k, Phase::backward, columns_.backward_time[k - 1], columns_.backward_overhead[k - 1]);
            op.reads = joined({&a[k - 1], &a[k], &tape[k], &d[k]});
            op.writes = d[k - 1];
            op.once = true;
            data_.ops.push_back(std::move(op));
        }
        return std::move(data_);
    }

  private:
    TensorId add(std::string name, Bytes bytes, Role role) {
        data_.tensors.push_back({std::move(name), bytes, role});
        return static_cast<TensorId>(data_.tensors.size()) - 1;
    }

    std::vector<TensorId> cut(const std::string& name, Bytes bytes, Role role) {
        if (chunk_.kind != Chunk::Kind::bytes || bytes <= chunk_.bytes) {
            return {add(name, bytes, role)};
        }
        const Bytes count = (bytes - 1) / chunk_.bytes + 1;
        if (data_.tensors.size() + static_cast<std::size_t>(count) > max_pieces) {
            throw std::invalid_argument(
                "chunk is " + std::to_string(chunk_.bytes) +
                " bytes, which cuts the chain into more than 100,000 pieces; use a larger chunk");
        }
        std::vector<TensorId> pieces;
        for (Bytes i = 0; i < count; ++i) {
            const Bytes piece = i + 1 < count ? chunk_.bytes : bytes - chunk_.bytes * (count - 1);
            pieces.push_back(add(name + "/" + std::to_string(i), piece, role));
        }
        return pieces;
    }

    std::vector<TensorId> tapes(std::size_t k) {
        const Bytes bytes = columns_.saved[k - 1] - columns_.activation[k];
        const std::string name = "tape" + std::to_string(k);
        if (bytes == 0) {
            return {};
        }
        if (chunk_.kind != Chunk::Kind::storage || columns_.pieces[k - 1].size() == 1) {
            return cut(name, bytes, Role::activation);
        }
        std::vector<TensorId> pieces;
        for (const Bytes piece : columns_.pieces[k - 1]) {
            if (piece > 0) {
                pieces.push_back(add(name + "/" + std::to_string(pieces.size()), piece, Role::activation));
            }
        }
        return pieces;
    }

    static std::vector<TensorId> joined(std::initializer_list<const std::vector<TensorId>*> lists) {
        std::vector<TensorId> all;
        for (const auto* list : lists) {
            all.insert(all.end(), list->begin(), list->end());
        }
        return all;
    }

    static Op make(const std::string& letter, std::size_t k, Phase phase, Seconds time, Bytes workspace) {
        Op op;
        op.name = letter + std::to_string(k);
        op.phase = phase;
        op.kind = "stage";
        op.layer = static_cast<int>(k);
        op.choices = {{"default", time, workspace}};
        return op;
    }

    const ChainColumns& columns_;
    Chunk chunk_;
    GraphData data_;
};

} // namespace

Graph to_graph(const Chain& chain, const Chunk& chunk) {
    if (chunk.kind == Chunk::Kind::bytes && chunk.bytes < 1) {
        throw std::invalid_argument("chunk is " + std::to_string(chunk.bytes) + " bytes; a piece has at least 1 byte");
    }
    if (chunk.kind == Chunk::Kind::storage && chain.columns().pieces.empty()) {
        throw std::invalid_argument(
            "chunk is 'storage', but the chain has no pieces; give Chain(pieces=...) or a chunk in bytes");
    }
    return Graph(GraphWriter(chain, chunk).build());
}

} // namespace memsched
