/* library.h - cairo and Pango, loaded when the first picture is drawn.
 *
 * Linked, they would be loaded with every command: some thirty libraries, of which GLib and
 * fontconfig allocate before main and end the process where memory is out.  So every function that
 * draws is a pointer in one table, and the names below stand for its members; a file that includes
 * this header calls cairo as if it were linked.  fv__draw_library fills the table. */
#ifndef FV_SEE_LIBRARY_H
#define FV_SEE_LIBRARY_H

#include <cairo-pdf.h>
#include <cairo-svg.h>
#include <cairo.h>
#include <pango/pangocairo.h>

#include "base/base.h"

/* clang-format off */
#define FV_DRAW_FUNCTIONS \
    X(cairo_arc) \
    X(cairo_close_path) \
    X(cairo_create) \
    X(cairo_curve_to) \
    X(cairo_destroy) \
    X(cairo_fill) \
    X(cairo_font_options_create) \
    X(cairo_font_options_destroy) \
    X(cairo_font_options_set_antialias) \
    X(cairo_font_options_set_hint_metrics) \
    X(cairo_font_options_set_hint_style) \
    X(cairo_get_source) \
    X(cairo_identity_matrix) \
    X(cairo_image_surface_create) \
    X(cairo_image_surface_get_data) \
    X(cairo_image_surface_get_stride) \
    X(cairo_move_to) \
    X(cairo_new_path) \
    X(cairo_new_sub_path) \
    X(cairo_paint) \
    X(cairo_pattern_add_color_stop_rgb) \
    X(cairo_pattern_create_linear) \
    X(cairo_pattern_destroy) \
    X(cairo_pattern_set_filter) \
    X(cairo_pdf_surface_create_for_stream) \
    X(cairo_rectangle) \
    X(cairo_restore) \
    X(cairo_rotate) \
    X(cairo_save) \
    X(cairo_scale) \
    X(cairo_set_dash) \
    X(cairo_set_line_cap) \
    X(cairo_set_line_width) \
    X(cairo_set_source) \
    X(cairo_set_source_rgb) \
    X(cairo_set_source_rgba) \
    X(cairo_set_source_surface) \
    X(cairo_status) \
    X(cairo_status_to_string) \
    X(cairo_stroke) \
    X(cairo_surface_destroy) \
    X(cairo_surface_finish) \
    X(cairo_surface_mark_dirty) \
    X(cairo_surface_status) \
    X(cairo_surface_write_to_png_stream) \
    X(cairo_svg_surface_create_for_stream) \
    X(cairo_svg_surface_set_document_unit) \
    X(cairo_translate) \
    X(cairo_user_to_device) \
    X(g_object_unref) \
    X(pango_cairo_context_set_font_options) \
    X(pango_cairo_context_set_resolution) \
    X(pango_cairo_font_map_new) \
    X(pango_cairo_show_layout) \
    X(pango_cairo_update_layout) \
    X(pango_font_description_free) \
    X(pango_font_description_new) \
    X(pango_font_description_set_absolute_size) \
    X(pango_font_description_set_family_static) \
    X(pango_font_description_set_weight) \
    X(pango_font_map_create_context) \
    X(pango_layout_get_extents) \
    X(pango_layout_get_size) \
    X(pango_layout_new) \
    X(pango_layout_set_ellipsize) \
    X(pango_layout_set_font_description) \
    X(pango_layout_set_single_paragraph_mode) \
    X(pango_layout_set_text) \
    X(pango_layout_set_width)
/* clang-format on */

extern struct fv__draw {
#define X(name) __typeof__(name) *name##_;
    FV_DRAW_FUNCTIONS
#undef X
} fv__draw;

/* Loads the libraries, once in a process; a missing one is FV_EMISSING. */
fv_status fv__draw_library(fv_err *e);

#ifndef FV_DRAW_NAMES /* library.c itself needs the names of the functions */
#define cairo_arc fv__draw.cairo_arc_
#define cairo_close_path fv__draw.cairo_close_path_
#define cairo_create fv__draw.cairo_create_
#define cairo_curve_to fv__draw.cairo_curve_to_
#define cairo_destroy fv__draw.cairo_destroy_
#define cairo_fill fv__draw.cairo_fill_
#define cairo_font_options_create fv__draw.cairo_font_options_create_
#define cairo_font_options_destroy fv__draw.cairo_font_options_destroy_
#define cairo_font_options_set_antialias fv__draw.cairo_font_options_set_antialias_
#define cairo_font_options_set_hint_metrics fv__draw.cairo_font_options_set_hint_metrics_
#define cairo_font_options_set_hint_style fv__draw.cairo_font_options_set_hint_style_
#define cairo_get_source fv__draw.cairo_get_source_
#define cairo_identity_matrix fv__draw.cairo_identity_matrix_
#define cairo_image_surface_create fv__draw.cairo_image_surface_create_
#define cairo_image_surface_get_data fv__draw.cairo_image_surface_get_data_
#define cairo_image_surface_get_stride fv__draw.cairo_image_surface_get_stride_
#define cairo_move_to fv__draw.cairo_move_to_
#define cairo_new_path fv__draw.cairo_new_path_
#define cairo_new_sub_path fv__draw.cairo_new_sub_path_
#define cairo_paint fv__draw.cairo_paint_
#define cairo_pattern_add_color_stop_rgb fv__draw.cairo_pattern_add_color_stop_rgb_
#define cairo_pattern_create_linear fv__draw.cairo_pattern_create_linear_
#define cairo_pattern_destroy fv__draw.cairo_pattern_destroy_
#define cairo_pattern_set_filter fv__draw.cairo_pattern_set_filter_
#define cairo_pdf_surface_create_for_stream fv__draw.cairo_pdf_surface_create_for_stream_
#define cairo_rectangle fv__draw.cairo_rectangle_
#define cairo_restore fv__draw.cairo_restore_
#define cairo_rotate fv__draw.cairo_rotate_
#define cairo_save fv__draw.cairo_save_
#define cairo_scale fv__draw.cairo_scale_
#define cairo_set_dash fv__draw.cairo_set_dash_
#define cairo_set_line_cap fv__draw.cairo_set_line_cap_
#define cairo_set_line_width fv__draw.cairo_set_line_width_
#define cairo_set_source fv__draw.cairo_set_source_
#define cairo_set_source_rgb fv__draw.cairo_set_source_rgb_
#define cairo_set_source_rgba fv__draw.cairo_set_source_rgba_
#define cairo_set_source_surface fv__draw.cairo_set_source_surface_
#define cairo_status fv__draw.cairo_status_
#define cairo_status_to_string fv__draw.cairo_status_to_string_
#define cairo_stroke fv__draw.cairo_stroke_
#define cairo_surface_destroy fv__draw.cairo_surface_destroy_
#define cairo_surface_finish fv__draw.cairo_surface_finish_
#define cairo_surface_mark_dirty fv__draw.cairo_surface_mark_dirty_
#define cairo_surface_status fv__draw.cairo_surface_status_
#define cairo_surface_write_to_png_stream fv__draw.cairo_surface_write_to_png_stream_
#define cairo_svg_surface_create_for_stream fv__draw.cairo_svg_surface_create_for_stream_
#define cairo_svg_surface_set_document_unit fv__draw.cairo_svg_surface_set_document_unit_
#define cairo_translate fv__draw.cairo_translate_
#define cairo_user_to_device fv__draw.cairo_user_to_device_
#define g_object_unref fv__draw.g_object_unref_
#define pango_cairo_context_set_font_options fv__draw.pango_cairo_context_set_font_options_
#define pango_cairo_context_set_resolution fv__draw.pango_cairo_context_set_resolution_
#define pango_cairo_font_map_new fv__draw.pango_cairo_font_map_new_
#define pango_cairo_show_layout fv__draw.pango_cairo_show_layout_
#define pango_cairo_update_layout fv__draw.pango_cairo_update_layout_
#define pango_font_description_free fv__draw.pango_font_description_free_
#define pango_font_description_new fv__draw.pango_font_description_new_
#define pango_font_description_set_absolute_size fv__draw.pango_font_description_set_absolute_size_
#define pango_font_description_set_family_static fv__draw.pango_font_description_set_family_static_
#define pango_font_description_set_weight fv__draw.pango_font_description_set_weight_
#define pango_font_map_create_context fv__draw.pango_font_map_create_context_
#define pango_layout_get_extents fv__draw.pango_layout_get_extents_
#define pango_layout_get_size fv__draw.pango_layout_get_size_
#define pango_layout_new fv__draw.pango_layout_new_
#define pango_layout_set_ellipsize fv__draw.pango_layout_set_ellipsize_
#define pango_layout_set_font_description fv__draw.pango_layout_set_font_description_
#define pango_layout_set_single_paragraph_mode fv__draw.pango_layout_set_single_paragraph_mode_
#define pango_layout_set_text fv__draw.pango_layout_set_text_
#define pango_layout_set_width fv__draw.pango_layout_set_width_
#endif

#endif
