//! Recurrent networks. ATen's `lstm`, `gru`, `rnn_tanh` and `rnn_relu` are stacks of layers. For each layer
//! and direction one product projects the inputs of all time steps. One operator with a kernel of its own
//! runs the recurrence. Cells are single steps, composed of products and pointwise operators.

operators! {
    gru: GRU;
    gru_cell: GRU_CELL;
    gru_layer: GRU_LAYER, GRU_LAYER_BACKWARD;
    lstm: LSTM;
    lstm_cell: LSTM_CELL;
    lstm_layer: LSTM_LAYER, LSTM_LAYER_BACKWARD;
    rnn: RNN_TANH, RNN_RELU;
    rnn_cell: RNN_TANH_CELL, RNN_RELU_CELL;
    rnn_layer: RNN_LAYER, RNN_LAYER_BACKWARD;
}

mod cell;
pub mod layer;
mod stack;
