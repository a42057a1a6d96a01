// Solves linear systems with MAGMA on the GPU and by plain elimination on the CPU, and says how
// far they are apart: one large system, then a batch of small ones. Prints one line of JSON.
#include <cuda_runtime.h>
#include <magma_v2.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>
#include <vector>

using Matrix = std::vector<double>;  // columns one after the other

static Matrix random_matrix(int size, std::mt19937& generator) {
  std::uniform_real_distribution<double> uniform(-1, 1);
  Matrix made(size);
  for (double& value : made) value = uniform(generator);
  return made;
}

// Gaussian elimination with partial pivoting, nothing of a library in it.
static Matrix solved(Matrix a, Matrix b, int n) {
  for (int k = 0; k < n; ++k) {
    int pivot = k;
    for (int i = k + 1; i < n; ++i)
      if (std::fabs(a[i + k * n]) > std::fabs(a[pivot + k * n])) pivot = i;
    for (int j = k; j < n; ++j) std::swap(a[k + j * n], a[pivot + j * n]);
    std::swap(b[k], b[pivot]);
    for (int i = k + 1; i < n; ++i) a[i + k * n] /= a[k + k * n];
    for (int j = k + 1; j < n; ++j)
      for (int i = k + 1; i < n; ++i) a[i + j * n] -= a[i + k * n] * a[k + j * n];
    for (int i = k + 1; i < n; ++i) b[i] -= a[i + k * n] * b[k];
  }
  for (int k = n - 1; k >= 0; --k) {
    b[k] /= a[k + k * n];
    for (int i = 0; i < k; ++i) b[i] -= a[i + k * n] * b[k];
  }
  return b;
}

static double apart(const Matrix& x, const Matrix& y) {
  double most = 0, scale = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!(std::fabs(x[i]) < 1e300)) return 1e300;
    most = std::max(most, std::fabs(x[i] - y[i]));
    scale = std::max(scale, std::fabs(y[i]));
  }
  return most / scale;
}

static void must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s failed\n", what);
  std::exit(1);
}

template <typename T>
static T* on_gpu(const std::vector<T>& values) {
  T* made = nullptr;
  must(cudaMalloc(&made, values.size() * sizeof(T)) == cudaSuccess, "cudaMalloc");
  must(cudaMemcpy(made, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice) ==
           cudaSuccess, "cudaMemcpy");
  return made;
}

static Matrix from_gpu(const double* values, size_t size) {
  Matrix made(size);
  must(cudaMemcpy(made.data(), values, size * sizeof(double), cudaMemcpyDeviceToHost) ==
           cudaSuccess, "cudaMemcpy");
  return made;
}

int main() {
  must(magma_init() == MAGMA_SUCCESS, "magma_init");
  magma_queue_t queue;
  magma_queue_create(0, &queue);
  std::mt19937 generator(7);

  const int n = 1200;
  const Matrix a = random_matrix(n * n, generator), b = random_matrix(n, generator);
  std::vector<magma_int_t> pivots(n);
  magma_int_t info = -1;
  double seconds = 0, one = 0;
  for (int turn = 0; turn < 2; ++turn) {  // the first turn loads the code
    double *da = on_gpu(a), *db = on_gpu(b);
    const auto start = std::chrono::steady_clock::now();
    magma_dgesv_gpu(n, 1, da, n, pivots.data(), db, n, &info);
    cudaDeviceSynchronize();
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    must(info == 0, "magma_dgesv_gpu");
    one = apart(from_gpu(db, n), solved(a, b, n));
    cudaFree(da);
    cudaFree(db);
  }

  const int small = 48, count = 100;
  Matrix as, bs, expected;
  for (int i = 0; i < count; ++i) {
    const Matrix ai = random_matrix(small * small, generator), bi = random_matrix(small, generator);
    const Matrix xi = solved(ai, bi, small);
    as.insert(as.end(), ai.begin(), ai.end());
    bs.insert(bs.end(), bi.begin(), bi.end());
    expected.insert(expected.end(), xi.begin(), xi.end());
  }
  double *das = on_gpu(as), *dbs = on_gpu(bs);
  magma_int_t* dpivots = on_gpu(std::vector<magma_int_t>(small * count));
  std::vector<double*> each_a, each_b;
  std::vector<magma_int_t*> each_pivots;
  for (int i = 0; i < count; ++i) {
    each_a.push_back(das + i * small * small);
    each_b.push_back(dbs + i * small);
    each_pivots.push_back(dpivots + i * small);
  }
  magma_int_t* dinfo = on_gpu(std::vector<magma_int_t>(count, -1));
  info = magma_dgesv_batched(small, 1, on_gpu(each_a), small, on_gpu(each_pivots), on_gpu(each_b),
                             small, dinfo, count, queue);
  magma_queue_sync(queue);
  must(info == 0, "magma_dgesv_batched");
  const double batch = apart(from_gpu(dbs, expected.size()), expected);

  magma_int_t major, minor, micro;
  magma_version(&major, &minor, &micro);
  std::printf(
      "{\"magma\": \"%d.%d.%d\", \"one\": %.3e, \"batch\": %.3e, \"seconds\": %.4f, \"n\": %d}\n",
      int(major), int(minor), int(micro), one, batch, seconds, n);
  magma_queue_destroy(queue);
  magma_finalize();
  return 0;
}
