// The device part.
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

#include "kernels.h"

namespace {

constexpr int kThreads = 256;

int blocks_for(int64_t count) {
  // A loop over the grid does the rest.
  return static_cast<int>(std::min<int64_t>((count + kThreads - 1) / kThreads, 65535));
}

template <typename T>
__global__ void saxpy_kernel(int64_t count, T a, const T* x, const T* y, T* out) {
  const int64_t step = static_cast<int64_t>(blockDim.x) * gridDim.x;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count; i += step)
    out[i] = a * x[i] + y[i];
}

template <typename T>
__global__ void relu_kernel(int64_t count, const T* x, T* out) {
  const int64_t step = static_cast<int64_t>(blockDim.x) * gridDim.x;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count; i += step)
    out[i] = x[i] > T(0) ? x[i] : T(0);
}

template <typename T>
__global__ void relu_gradient_kernel(int64_t count, const T* x, const T* gradient, T* out) {
  const int64_t step = static_cast<int64_t>(blockDim.x) * gridDim.x;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count; i += step)
    out[i] = x[i] > T(0) ? gradient[i] : T(0);
}

// A block for each row: every thread sums its part, then halves of the block are folded together.
template <typename T>
__global__ void row_sums_kernel(int64_t columns, const T* x, T* out) {
  __shared__ T part[kThreads];
  const T* row = x + blockIdx.x * columns;
  T sum = T(0);
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) sum += row[i];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

}  // namespace

at::Tensor saxpy_cuda(double a, const at::Tensor& x, const at::Tensor& y) {
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor out = at::empty_like(x);
  if (x.numel() == 0) return out;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "saxpy", [&] {
    saxpy_kernel<scalar_t><<<blocks_for(x.numel()), kThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.numel(), static_cast<scalar_t>(a), x.const_data_ptr<scalar_t>(),
        y.const_data_ptr<scalar_t>(), out.mutable_data_ptr<scalar_t>());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

at::Tensor relu_cuda(const at::Tensor& x) {
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor out = at::empty_like(x);
  if (x.numel() == 0) return out;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "relu", [&] {
    relu_kernel<scalar_t><<<blocks_for(x.numel()), kThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.numel(), x.const_data_ptr<scalar_t>(), out.mutable_data_ptr<scalar_t>());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

at::Tensor relu_gradient_cuda(const at::Tensor& x, const at::Tensor& gradient) {
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor out = at::empty_like(x);
  if (x.numel() == 0) return out;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "relu_gradient", [&] {
    relu_gradient_kernel<scalar_t>
        <<<blocks_for(x.numel()), kThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
            x.numel(), x.const_data_ptr<scalar_t>(), gradient.const_data_ptr<scalar_t>(),
            out.mutable_data_ptr<scalar_t>());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

at::Tensor row_sums_cuda(const at::Tensor& x) {
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor out = at::zeros({x.size(0)}, x.options());
  if (x.numel() == 0) return out;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "row_sums", [&] {
    row_sums_kernel<scalar_t><<<static_cast<unsigned>(x.size(0)), kThreads, 0,
                                at::cuda::getCurrentCUDAStream()>>>(
        x.size(1), x.const_data_ptr<scalar_t>(), out.mutable_data_ptr<scalar_t>());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
