// What the host part calls of the device part.
#pragma once
#include <torch/extension.h>

at::Tensor saxpy_cuda(double a, const at::Tensor& x, const at::Tensor& y);
at::Tensor relu_cuda(const at::Tensor& x);
at::Tensor relu_gradient_cuda(const at::Tensor& x, const at::Tensor& gradient);
at::Tensor row_sums_cuda(const at::Tensor& x);
